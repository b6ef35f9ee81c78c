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
    point: String,
    unit: String,
    /// Number of texts and tokens searched, excluding padding.
    pub searched: [usize; 2],
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
    /// Id of the token at the position.
    pub id: u32,
    /// The activation.
    pub value: f32,
    /// The tokens around the position, including its own: positions, tokens and activations.
    pub context: Vec<(usize, String, f32)>,
}

impl FoundExamples {
    pub(super) fn new(tokenizer: Option<&Tokenizer>, unit: &Unit<'_>, searched: [usize; 2], best: Best) -> Self {
        let example = |(Firing { text, position, value }, Context { start, places }): (Firing, Context)| {
            let id = places[position - start].0;
            let around = |(at, (id, value))| (at, token_text(tokenizer, id), value);
            let context = (start..).zip(places).map(around).collect();
            FoundExample { text, position, token: token_text(tokenizer, id), id, value, context }
        };
        let examples = best.into_sorted().into_iter().map(example).collect();
        Self { point: unit.point().into(), unit: unit.name(), searched, examples }
    }

    /// The heading of a list of the examples: point, unit and counts.
    #[must_use]
    pub fn heading(&self) -> String {
        let [texts, tokens] = self.searched.map(grouped);
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
            for (number, (at, token, _)) in example.context.iter().enumerate() {
                let token = token.replace(['\n', '\r'], "↵");
                let space = if number > 0 && !token.starts_with(' ') { " " } else { "" };
                match *at == example.position {
                    true => write!(f, "{space}[{token}]")?,
                    false => write!(f, "{space}{token}")?,
                }
            }
        }
        Ok(())
    }
}

/// Formats an activation with a few digits.
pub fn number(value: f32) -> String {
    match value.abs() {
        size if size != 0.0 && !(0.001..10_000.0).contains(&size) => format!("{value:.3e}"),
        _ => format!("{value:.4}"),
    }
}
