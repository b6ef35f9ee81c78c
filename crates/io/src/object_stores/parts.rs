//! Workaround for servers that answer with a partial object but the wrong status.

use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, Result};

/// Connects as usual, but treats a response with a content range as partial content, even if the status of the response
/// says that it contains the whole object. rclone's server sends such responses.
#[derive(Debug)]
pub(super) struct Parts;

impl HttpConnector for Parts {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(Service(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct Service(HttpClient);

#[async_trait::async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut response = self.0.execute(request).await?;
        if response.status() == http::StatusCode::OK && response.headers().contains_key(http::header::CONTENT_RANGE) {
            *response.status_mut() = http::StatusCode::PARTIAL_CONTENT;
        }
        Ok(response)
    }
}
