//! [`FoundExamples`]: the top activating examples.

use std::fmt;

use super::best::{Best, Context, Firing};
use super::unit::Unit;
use hooklens_io::numerals::grouped;
use hooklens_model::tokens::{Tokenizer, token_text};

/// The top activating examples in descending order. Shown as colored text in notebooks, and as a list when printed.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let texts = ["king drum sun king", "red fox tea red"];
/// let found = TopExamples::new("resid_post1").neuron(3).k(2).window(1).run(&model, texts)?;
/// println!("{found}");
/// assert!(found.to_string().starts_with("blocks.1.hook_resid_post, neuron 3: the 2 largest of 10 tokens in 2 texts\n"));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FoundExamples {
    /// Full name of the point.
    pub point: String,
    /// Description of the ranked unit, such as `neuron 5` or `head 3, a direction`.
    pub unit: String,
    /// Number of texts searched.
    pub texts: usize,
    /// Number of tokens searched, excluding padding.
    pub tokens: usize,
    /// The examples, in descending order of activation.
    pub examples: Vec<FoundExample>,
}

/// One example: a position with a large activation.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FoundExample {
    /// Index of the text.
    pub text: usize,
    /// Position in the text, counting an added BOS token.
    pub position: usize,
    /// The token at the position; its id if there is no tokenizer.
    pub token: String,
    /// The token's id.
    pub id: u32,
    /// The activation.
    pub value: f32,
    /// Position of the first token in `tokens`.
    pub start: usize,
    /// The surrounding tokens, including this one.
    pub tokens: Vec<String>,
    /// The activation at each of the surrounding tokens.
    pub values: Vec<f32>,
}

impl FoundExamples {
    pub(super) fn new(tokenizer: Option<&Tokenizer>, unit: &Unit<'_>, [texts, tokens]: [usize; 2], best: Best) -> Self {
        let example = |(Firing { text, position, value }, Context { start, places }): (Firing, Context)| {
            let (ids, values): (Vec<u32>, Vec<f32>) = places.into_iter().unzip();
            let id = ids[position - start];
            let word = |id: u32| token_text(tokenizer, id);
            let tokens = ids.into_iter().map(word).collect();
            FoundExample { text, position, token: word(id), id, value, start, tokens, values }
        };
        let examples = best.into_sorted().into_iter().map(example).collect();
        Self { point: unit.point().into(), unit: unit.name(), texts, tokens, examples }
    }

    /// The heading of a list of the examples: point, unit and counts.
    #[must_use]
    pub fn heading(&self) -> String {
        let (tokens, texts) = (grouped(self.tokens), grouped(self.texts));
        let count = grouped(self.examples.len());
        format!("{}, {}: the {count} largest of {tokens} tokens in {texts} texts", self.point, self.unit)
    }
}

impl fmt::Display for FoundExamples {
    /// One line per example, with its token in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.heading())?;
        for example in &self.examples {
            let place = format!("text {}, position {}", example.text, example.position);
            write!(f, "\n{:>10}  {place}: ", number(example.value))?;
            for (at, token) in (example.start..).zip(&example.tokens) {
                let token = token.replace(['\n', '\r'], "↵");
                let space = if at > example.start && !token.starts_with(' ') { " " } else { "" };
                match at == example.position {
                    true => write!(f, "{space}[{token}]")?,
                    false => write!(f, "{space}{token}")?,
                }
            }
        }
        Ok(())
    }
}

/// An activation in a few digits.
pub fn number(value: f32) -> String {
    match value.abs() {
        size if size != 0.0 && !(0.001..10_000.0).contains(&size) => format!("{value:.3e}"),
        _ => format!("{value:.4}"),
    }
}
