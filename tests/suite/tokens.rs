//! Conversion between text and rows of tokens.

use hooklens::TokenizeOptions;
use hooklens::prelude::*;
use hooklens::{Error, InputError};
use hooklens_hooks::Provenance;
use proptest::prelude::*;

use crate::support::cases;

const WORDS: [&str; 5] = ["red", "fox", "tea", "king", "sun"];

fn any_text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&WORDS), 0..7).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(60) })]

    /// Concatenated rows contain every token of every text, in order, with a separator between texts, except for an
    /// incomplete last row.
    #[test]
    fn concatenated_rows_are_the_texts(texts in prop::collection::vec(any_text(), 1..8), len in 1..6usize, bos: bool) {
        let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
        let tokenizer = model.tokenizer().unwrap();
        let separator = tokenizer.bos().unwrap();
        let own: Vec<Vec<u32>> = texts.iter().filter(|text| !text.is_empty()).map(|text| tokenizer.encode(text).unwrap()).collect();
        let all = own.join(&separator);
        let added = usize::from(bos);
        let given = model.tokenize_and_concatenate(texts, len, Some(bos));
        if len == added || all.len() < len - added {
            let refused = matches!(given, Err(Error::Input(InputError::Setting { .. } | InputError::Empty { .. })));
            prop_assert!(refused, "{given:?}");
            return Ok(());
        }
        let rows = given.unwrap();
        prop_assert!(rows.shape()[1] == len && rows.mask().is_none());
        let mut found = Vec::new();
        for row in (0..rows.shape()[0]).map(|row| rows.row(row)) {
            prop_assert!(!bos || (row[0] == separator && row[1] != separator), "{row:?}");
            // A separator at the start of a row serves as the row's BOS token.
            let place: usize = found.len();
            found.extend((bos && place > 0 && all.get(place) == Some(&separator)).then_some(separator));
            found.extend(&row[added..]);
        }
        prop_assert!(all.starts_with(&found) && all.len() - found.len() <= len - added, "{all:?} {found:?}");
    }
}

/// Ids that already start with the BOS token do not get a second one, and neither does a text that contains it.
#[test]
fn no_first_token_is_doubled() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let rows = model.tokenize_and_concatenate(["<bos> red fox tea", "<bos> king sun"], 4, Some(true)).unwrap();
    assert_eq!(model.to_string(rows.row(0)).unwrap(), "<bos> red fox tea");
    assert_eq!(rows.shape(), [1, 4]);
    let rows = model.tokenize_and_concatenate(["<bos> red fox", "<bos> king sun"], 4, Some(true)).unwrap();
    assert_eq!(model.to_string(rows.row(0)).unwrap(), "<bos> red fox <bos>");
}

#[test]
fn texts_are_cut_where_that_is_asked_for() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let cut = |truncate| {
        let options = TokenizeOptions { truncate, ..Default::default() };
        model.to_tokens_with(["red fox tea", "red"], options)
    };
    let whole = cut(None).unwrap();
    assert_eq!((whole.shape(), whole.real(0).len(), whole.real(1).len()), ([2, 4], 4, 2));
    let short = cut(Some(3)).unwrap();
    assert_eq!((short.real(0), short.real(1)), (whole.real(0)[..3].to_vec(), whole.real(1)));
    assert_eq!(cut(Some(4)).unwrap(), whole);
    let message = cut(Some(0)).unwrap_err().to_string();
    assert!(message.contains("truncate"), "{message}");
}

/// Unknown words are named, each once, with similar words or else some known words.
#[test]
fn unknown_words_are_named() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let unknown = |text: &str| match model.to_tokens(text) {
        Err(Error::Input(InputError::UnknownWords { words, vocabulary, nearest, first })) => {
            assert_eq!((vocabulary, first.len()), (61, 5));
            assert!(!first.contains(&"<bos>".to_string()), "{first:?}");
            (words, nearest)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(unknown("Marry and Marry, Bob").0, ["Marry", "Bob"]);
    assert_eq!(unknown("Marry").1[0], "Mary");
    assert!(unknown("Bob").1.is_empty());
    let message = |text: &str| model.to_tokens(text).unwrap_err().to_string();
    assert!(message("Bob").contains("; it has `Mary`, `John`, "), "{}", message("Bob"));
    assert!(message("b c d e f g").contains("lacks `b`, `c`, `d`, `e`, `f` and 1 more"), "{}", message("b c d e f g"));
    for error in [
        model.to_single_token("Bob").map(drop).unwrap_err(),
        model.tokenize("Bob").map(drop).unwrap_err(),
        model.generate_with("Bob", GenerateOptions::new().max_new_tokens(1)).map(drop).unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Input(InputError::UnknownWords { words, .. }) if words == &["Bob"]), "{error}");
    }
}

/// An id without a token has no text, which is an error. Generated ids that have a token give text.
#[test]
fn ids_of_no_token_are_errors() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let message = model.to_string(&[1, 999]).unwrap_err();
    assert!(matches!(message, Error::Input(InputError::NoToken { id: 999, vocabulary: 63 })), "{message}");
    assert!(model.tokenizer().unwrap().decode(&[63], true).is_err());
    // Embeddings longer than the tokenizer's vocabulary, as in published models.
    let config = TransformerConfig::new(1, 16, 4, 100, 16);
    let padded = HookedTransformer::random(config, 3, &Device::flex()).unwrap();
    let padded = padded.with_tokenizer(model.tokenizer().unwrap().clone());
    let made = padded.generate_with([1, 70, 80], GenerateOptions::new().max_new_tokens(8).stop_at_eos(false)).unwrap();
    let row = &made.rows[0];
    let known: Vec<u32> = row.new.iter().copied().filter(|id| *id < 63).collect();
    assert!(known.len() < row.new.len(), "{:?}", row.new);
    assert_eq!(row.text, Some(padded.to_string(&known).unwrap()));
}

#[test]
fn borrowed_lists_of_texts_are_inputs() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let texts = vec!["red fox", "tea"];
    assert_eq!(model.to_tokens(&texts).unwrap(), model.to_tokens(["red fox", "tea"]).unwrap());
    assert_eq!(model.record(&texts, "z0").unwrap().rows_recorded(), [2, 3]);
}
