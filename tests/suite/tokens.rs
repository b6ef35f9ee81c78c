//! Between text and rows of tokens.

use hooklens::prelude::*;
use hooklens::{Error, InputError};
use proptest::prelude::*;

const WORDS: [&str; 5] = ["red", "fox", "tea", "king", "sun"];

fn any_text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&WORDS), 0..7).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Rows hold every token of every text, in order, a separator between two texts, but for less than a row.
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
            // A separator that falls where a row begins is the row's first token.
            let place: usize = found.len();
            found.extend((bos && place > 0 && all.get(place) == Some(&separator)).then_some(separator));
            found.extend(&row[added..]);
        }
        prop_assert!(all.starts_with(&found) && all.len() - found.len() <= len - added, "{all:?} {found:?}");
    }
}

/// Neither ids that begin with it already nor a text that does get a second first token.
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
    let told = cut(Some(0)).unwrap_err().to_string();
    assert!(told.contains("truncate"), "{told}");
}
