use std::collections::HashSet;

use hooklens_loading::loading::inspect;

use hooklens_model::tokens::single_token;

use super::*;
use crate::prompt_sets::PromptSet;

fn tokenizer(model: &str) -> Tokenizer {
    inspect(model).unwrap().tokenizer.unwrap()
}

fn message(found: Result<PromptPairs, PromptSetError>) -> String {
    hooklens_model::error::error_chain(&found.unwrap_err())
}

fn ioi() -> Template {
    Template::new(
        "When {a} and {b} met, {b} gave a ball to",
        "When {a} and {b} met, {a} gave a ball to",
        " {a}",
        " {b}",
    )
}

#[test]
fn pairs_are_distinct_and_follow_their_seed() {
    let tokenizer = tokenizer("embedded:ioi");
    let template = PromptSet::Ioi.template();
    let found = template.pairs(&tokenizer, 300, 4).unwrap();
    assert_eq!(found, template.pairs(&tokenizer, 300, 4).unwrap());
    assert_eq!(found.pairs[..20], template.pairs(&tokenizer, 20, 4).unwrap().pairs);
    assert_ne!(found.pairs[..20], template.pairs(&tokenizer, 20, 5).unwrap().pairs);
    assert_eq!(found.pairs.iter().map(|pair| (&pair.clean, &pair.corrupted)).collect::<HashSet<_>>().len(), 300);
    assert_eq!(found.skipped, 0);
    assert!(found.dropped.contains(&"Michael".to_string()) && !found.dropped.contains(&"Mary".to_string()));
    for pair in &found.pairs {
        let ids = [&pair.clean, &pair.corrupted].map(|text| tokenizer.encode(text).unwrap());
        assert_eq!(ids[0].len(), ids[1].len());
        assert_eq!(single_token(&tokenizer, &pair.answer).unwrap(), pair.answer_id);
        assert_eq!(pair.clean.matches(&pair.wrong).count(), 2, "{pair:?}");
        assert_eq!(pair.corrupted.matches(&pair.answer).count(), 2, "{pair:?}");
    }
}

#[test]
fn the_number_of_pairs_is_exact() {
    let tokenizer = tokenizer("embedded:ioi");
    let names = ioi().words(["a", "b"], ["Mary", "John", "Tom"]);
    assert_eq!(names.pairs(&tokenizer, 6, 0).unwrap().pairs.len(), 6);
    assert!(message(names.pairs(&tokenizer, 7, 0)).contains("7 pairs were requested, but there are only 6;"));
    // Repeated words do not give more pairs.
    let names = ioi().words(["a", "b"], ["Mary", "John", "Mary"]);
    let error = message(names.pairs(&tokenizer, 3, 0));
    assert!(error.contains("there are only 2;") && error.contains("both `"), "{error}");
    assert!(message(names.pairs(&tokenizer, 0, 0)).contains("0 pairs"));
    assert!(message(PromptSet::Ioi.template().pairs(&tokenizer, usize::MAX, 0)).contains("there are only 2553600;"));
}

#[test]
fn prompts_of_other_lengths_are_skipped_and_counted() {
    let tokenizer = tokenizer("embedded:ioi");
    let template = Template::new("{a} went {to} the", "{b} went to the", " {a}", " {b}")
        .words(["a", "b"], ["Mary", "John"])
        .phrases("to", ["to", "to the", "toward"]);
    let found = template.pairs(&tokenizer, 2, 0).unwrap();
    assert_eq!((found.words, &found.dropped[..]), (5, &["toward".to_string()][..]));
    assert!(found.pairs.iter().all(|pair| pair.clean.ends_with("went to the")));
    let error = message(template.pairs(&tokenizer, 3, 0));
    assert!(error.contains("only 2;") && error.contains("2 combinations of words were skipped"), "{error}");
    assert!(error.contains("has 5 tokens, but") && error.contains("has 4"), "{error}");
}

#[test]
fn wrong_templates_are_named() {
    let tokenizer = tokenizer("embedded:ioi");
    let names = ["Mary", "John"];
    let of = |template: Template| message(template.pairs(&tokenizer, 1, 0));
    let unknown = of(Template::new("When {name}", "When {nam}", " {name}", " to").words(["name"], names));
    assert!(unknown.contains("no words for the slot `nam` of `When {nam}`; did you mean `name`?"), "{unknown}");
    assert!(of(ioi()).contains("no slot has words"));
    let unused = of(ioi().words(["a", "b"], names).words(["place"], ["park"]));
    assert!(unused.contains("the slot `place` has words, but occurs in none"), "{unused}");
    assert!(of(ioi().words(["a", "b", "a"], names)).contains("`a` has two lists"));
    let row = of(ioi().rows(["a", "b"], [vec!["Mary", "John"], vec!["Tom"]]));
    assert!(row.contains("a row of 1 words cannot fill the slots `a`, `b`"), "{row}");
    let few = of(ioi().words(["a", "b"], ["Mary", "Beatrix", "Zed"]));
    assert!(few.contains("for `a`, `b`: expected at least 2, but only 1 of 3 are single tokens"), "{few}");
    assert!(few.contains("`Beatrix`, `Zed`"), "{few}");
    assert!(of(ioi().words(["a", "b"], [""; 0])).contains("only 0 of 0 are single tokens"));
    let text = of(Template::new("Whenever {a}", "Whenever {b}", " {a}", " {b}").words(["a", "b"], names));
    assert!(text.starts_with("cannot tokenize `Whenever `: the vocabulary of 61 tokens lacks `Whenever`"), "{text}");
    let same = of(Template::new("When {a}", "When {b}", " and", " and").words(["a", "b"], names));
    assert!(same.contains("there are only 0") && same.contains("both ` and`"), "{same}");
    let nested = of(ioi().words(["a", "b"], names).phrases("c", ["{d}"]).phrases("d", ["x"]));
    assert!(nested.contains("no words for the slot `d` of `{d}`"), "{nested}");
}

/// Every set is a valid template, and too few words are reported for a tokenizer that lacks its words.
#[test]
fn sets_are_valid() {
    for set in PromptSet::ALL {
        set.template().check().unwrap();
        assert_eq!(set.name().parse::<PromptSet>().unwrap(), set);
        let few = message(set.template().pairs(&tokenizer("embedded:induction"), 1, 0));
        assert!(few.contains("too few words for `"), "{set}: {few}");
    }
    assert!("oi".parse::<PromptSet>().unwrap_err().to_string().contains("did you mean `ioi`?"));
}
