//! The `Texts` input type: one or several texts.

/// One or several texts.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let texts = vec!["red fox".to_string(), "red".to_string()];
/// // One or several texts, owned or borrowed.
/// assert_eq!(model.to_tokens("red")?.shape(), [1, 2]);
/// assert_eq!(model.to_tokens(&texts)?, model.to_tokens(["red fox", "red"])?);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Texts(pub(crate) Vec<String>);

/// Implements conversions to [`Texts`] from these types.
macro_rules! texts_from {
    ($($given:ty => |$text:ident| $texts:expr;)*) => { $(
        impl From<$given> for Texts {
            fn from($text: $given) -> Self {
                Self($texts)
            }
        }
    )* };
}

texts_from! {
    &str => |text| vec![text.to_string()];
    &&str => |text| vec![text.to_string()];
    &String => |text| vec![text.clone()];
    String => |text| vec![text];
    Vec<String> => |texts| texts;
    &Vec<String> => |texts| texts.clone();
    &[String] => |texts| texts.to_vec();
    &[&str] => |texts| texts.iter().map(|text| text.to_string()).collect();
    Vec<&str> => |texts| texts.iter().map(|text| text.to_string()).collect();
    &Vec<&str> => |texts| texts.iter().map(|text| text.to_string()).collect();
}

impl<const N: usize> From<[&str; N]> for Texts {
    fn from(texts: [&str; N]) -> Self {
        texts.as_slice().into()
    }
}
