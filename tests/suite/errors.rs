//! Errors keep their causes, without repeating text.

use std::error::Error as StdError;
use std::fs;

use hooklens::corpus::Corpus;
use hooklens::dump::Dump;
use hooklens::prelude::*;
use hooklens::{DumpError, Error, HookError, LoadError, error_chain};
use serde_json::json;

use crate::support::{device, random_model};

/// Messages of an error and all its causes. None contains another, so they can be joined.
fn links(error: &dyn StdError) -> Vec<String> {
    let causes = std::iter::successors(Some(error), |link| StdError::source(*link));
    let links: Vec<String> = causes.map(|link| link.to_string()).collect();
    for (place, link) in links.iter().enumerate() {
        assert!(!link.is_empty(), "{links:?}");
        assert!(links[..place].iter().all(|before| !before.contains(link.as_str())), "said twice: {links:?}");
    }
    assert_eq!(error_chain(error), links.join(": ").replace('\n', " "));
    links
}

/// The cause of this type anywhere in the chain.
fn cause<'e, E: StdError + 'static>(error: &'e (dyn StdError + 'static)) -> Option<&'e E> {
    std::iter::successors(Some(error), |link| StdError::source(*link)).find_map(|link| link.downcast_ref::<E>())
}

fn model() -> HookedTransformer {
    random_model(TransformerConfig::new(1, 16, 2, 20, 16), 1)
}

/// The error of loading a saved model with one file changed.
fn loading(change: impl FnOnce(&std::path::Path)) -> Error {
    let folder = tempfile::tempdir().unwrap();
    model().save_pretrained(folder.path()).unwrap();
    change(folder.path());
    HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err()
}

#[test]
fn a_missing_file_keeps_what_the_system_says() {
    let read = Corpus::new(["/no/such/prompts.txt"]).prompts().unwrap().collect::<Result<Vec<_>, _>>();
    let error = read.unwrap_err();
    assert!(matches!(error, DumpError::File { .. }), "{error:?}");
    let io = cause::<std::io::Error>(&error).unwrap();
    assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(links(&error), ["can't access /no/such/prompts.txt".to_string(), io.to_string()]);
    // The chain is the same through the crate's error type.
    let error = Error::from(error);
    assert_eq!((links(&error).len(), cause::<std::io::Error>(&error).is_some()), (2, true));
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = model().save_pretrained(file.path().join("folder")).unwrap_err();
    assert!(matches!(error, Error::Load(LoadError::Write { .. })), "{error:?}");
    assert!(cause::<std::io::Error>(&error).is_some() && links(&error).len() == 2);
}

#[test]
fn a_truncated_safetensors_file_keeps_what_its_reader_says() {
    for keep in [4, 100] {
        let error = loading(|folder| {
            let path = folder.join("model.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..keep]).unwrap();
        });
        assert!(matches!(&error, Error::Load(LoadError::Corrupt { .. })), "{error:?}");
        assert!(cause::<safetensors::SafeTensorError>(&error).is_some(), "{error:?}");
        let said = links(&error);
        assert!(said.len() == 2 && said[0].contains("model.safetensors is not a valid weight file: "), "{said:?}");
    }
}

#[test]
fn a_configuration_that_is_no_json_keeps_where_it_stops_being() {
    let error = loading(|folder| fs::write(folder.join("config.json"), "{\"d_model\": ").unwrap());
    assert!(matches!(&error, Error::Load(LoadError::Json { path, .. }) if path.ends_with("config.json")), "{error:?}");
    let json = cause::<serde_json::Error>(&error).unwrap();
    assert!(json.is_eof() && links(&error)[1].contains("line 1"), "{error:?}");
    // An invalid value of a field, in a file that is valid JSON.
    let error = loading(|folder| {
        let path = folder.join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["hooklens_windows"] = json!("wide");
        fs::write(&path, config.to_string()).unwrap();
    });
    let said = links(&error);
    assert!(said[0] == "`hooklens_windows` can't be read" && cause::<serde_json::Error>(&error).is_some(), "{said:?}");
}

#[test]
fn a_broken_manifest_keeps_what_is_wrong_with_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("manifest.json"), "{\"format\": 7}").unwrap();
    let error = Dump::new("z0").resume(true).run(&model(), &[vec![1, 2]], folder.path()).unwrap_err();
    let Some(DumpError::Manifest { path, .. }) = error.downcast_ref() else { panic!("{error:?}") };
    assert!(path.ends_with("manifest.json"));
    let json = cause::<serde_json::Error>(&error).unwrap().to_string();
    assert_eq!(links(&error), [format!("{} is not the manifest of a dump", path.display()), json]);
}

#[test]
fn what_wraps_an_error_does_not_repeat_it() {
    let fails = hook::z(0).edit(|_, _| Err::<Tensor<4>, _>(std::io::Error::other("no")));
    let error = model().run_with_hooks([1, 2], [fails]).unwrap_err();
    assert!(matches!(&error, Error::Hook(HookError::Failed { .. })), "{error:?}");
    assert_eq!(links(&error), ["the hook at `blocks.0.attn.hook_z` failed", "no"]);
    let folder = tempfile::tempdir().unwrap();
    let error = Dump::new("z0").run(&model(), &[vec![1], vec![99]], folder.path().join("out")).unwrap_err();
    let said = links(&error);
    assert_eq!((said[0].as_str(), said.len()), ("prompt 2", 2));
    assert!(said[1].starts_with("token 99 at row 0, position 0"), "{said:?}");
    let error = Activation::from(Tensor::<1>::ones([1], &device())).save_npy("/no/such/one.npy").unwrap_err();
    assert!(cause::<std::io::Error>(&error).is_some() && links(&error).len() == 2);
}

/// The program prints the chain.
#[test]
fn the_program_tells_the_cause_once() {
    let output = crate::support::program()
        .args(["dump", "--model", "embedded:induction", "--hooks", "z0", "--out", "/tmp/never.safetensors"])
        .args(["--prompts", "/no/such/prompts.txt"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let why = std::io::Error::from_raw_os_error(2).to_string();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: --prompts /no/such/prompts.txt: "), "{said}");
    assert_eq!(said.matches(&why).count(), 1, "{said}");
}
