//! [`StatisticsError`].

use thiserror::Error;

/// An error of a [`Statistics`](crate::statistics::Statistics) method.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum StatisticsError {
    /// There are too few examples.
    #[error("{what} requires at least {least} examples, but there are {given}")]
    TooFew {
        /// What was to be computed.
        what: &'static str,
        /// The smallest number of examples.
        least: usize,
        /// The number of examples.
        given: usize,
    },
    /// An effect is NaN or infinite.
    #[error("the effect of example {example}{place} is {value}, not a finite number")]
    NotFinite {
        /// Index of the example.
        example: usize,
        /// The effect.
        value: f64,
        /// Where the effect was measured, for messages; empty for a single series of effects.
        place: String,
    },
    /// A statistic of all examples together is NaN or infinite, so it has no interval.
    #[error("the statistic of all examples is {value}, not a finite number, so it has no interval")]
    Undefined {
        /// The statistic.
        value: f64,
    },
    /// The confidence is not between 0 and 1.
    #[error("the confidence is {given}, but must be greater than 0 and less than 1")]
    Confidence {
        /// The confidence.
        given: f64,
    },
    /// There are more successes than trials, or no trials.
    #[error(
        "cannot compute a success rate from {successes} successes in {trials} trials; expected at least 1 trial and no \
         more successes than trials"
    )]
    Trials {
        /// The number of successes.
        successes: u64,
        /// The number of trials.
        trials: u64,
    },
    /// Two results do not measure the same examples or sites.
    #[error("cannot compare the results: {what}")]
    Compared {
        /// How they differ.
        what: String,
    },
}
