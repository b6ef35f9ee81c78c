//! The built-in prompt sets.

use std::fmt;
use std::str::FromStr;

use hooklens_hooks::nearest;

use super::{Template, arithmetic, capital_country, docstring, gender_bias, greater_than, ioi, subject_verb_agreement};
use crate::error::PromptSetError;

/// A task from the literature, as a generator of pairs of prompts.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::prompt_sets::PromptSet;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let set: PromptSet = "ioi".parse()?;
/// let found = set.template().pairs(model.tokenizer()?, 20, 0)?; // 20 pairs from seed 0
/// println!("{} of {} words are not single tokens", found.dropped.len(), found.words);
/// let clean: Vec<&str> = found.pairs.iter().map(|pair| &*pair.clean).collect();
/// let corrupted: Vec<&str> = found.pairs.iter().map(|pair| &*pair.corrupted).collect();
/// let (answers, wrong): (Vec<u32>, Vec<u32>) = found.pairs.iter().map(|pair| (pair.answer_id, pair.wrong_id)).unzip();
/// let heads = model.patching(clean, corrupted).logit_diff(answers, wrong)?.attn_head_out_all_pos()?;
/// assert_eq!(heads.baseline.len(), 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PromptSet {
    /// Indirect object identification (Wang et al. 2022): which of two names receives something.
    Ioi,
    /// Years that are later than a given year of the same century (Hanna et al. 2023).
    GreaterThan,
    /// `is` or `are` after a subject and a distractor noun of the opposite grammatical number (Linzen et al. 2016).
    SubjectVerbAgreement,
    /// The next argument in a Python docstring (Heimersheim & Janiak 2023).
    Docstring,
    /// `he` or `she` after the name of a profession that is stereotypically male or female (Vig et al. 2020). The answer
    /// is the stereotype, not a fact.
    GenderBias,
    /// Capitals of countries.
    CapitalCountry,
    /// Sums of two numbers from 1 to 20, after one solved example.
    Arithmetic,
}

impl PromptSet {
    /// All sets.
    pub const ALL: [Self; 7] = [
        Self::Ioi,
        Self::GreaterThan,
        Self::SubjectVerbAgreement,
        Self::Docstring,
        Self::GenderBias,
        Self::CapitalCountry,
        Self::Arithmetic,
    ];

    /// Name of the set on the command line, which [`FromStr`] parses.
    ///
    /// ```
    /// use hooklens::prompt_sets::PromptSet;
    /// assert_eq!(PromptSet::GreaterThan.name(), "greater-than");
    /// let message = "greater-then".parse::<PromptSet>().unwrap_err().to_string();
    /// assert!(message.contains("did you mean `greater-than`?"), "{message}");
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ioi => "ioi",
            Self::GreaterThan => "greater-than",
            Self::SubjectVerbAgreement => "subject-verb-agreement",
            Self::Docstring => "docstring",
            Self::GenderBias => "gender-bias",
            Self::CapitalCountry => "capital-country",
            Self::Arithmetic => "arithmetic",
        }
    }

    /// The template of the set, with its words.
    pub fn template(self) -> Template {
        match self {
            Self::Ioi => ioi::template(),
            Self::GreaterThan => greater_than::template(),
            Self::SubjectVerbAgreement => subject_verb_agreement::template(),
            Self::Docstring => docstring::template(),
            Self::GenderBias => gender_bias::template(),
            Self::CapitalCountry => capital_country::template(),
            Self::Arithmetic => arithmetic::template(),
        }
    }
}

impl fmt::Display for PromptSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PromptSet {
    type Err = PromptSetError;

    fn from_str(given: &str) -> Result<Self, PromptSetError> {
        let names = Self::ALL.map(Self::name);
        Self::ALL.into_iter().find(|set| set.name() == given).ok_or_else(|| PromptSetError::Unknown {
            given: given.into(),
            nearest: nearest(given, names),
            known: names.map(String::from).to_vec(),
        })
    }
}
