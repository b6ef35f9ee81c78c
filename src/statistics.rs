//! Uncertainty of effects over examples: bootstrap intervals, sign-flip permutation tests, and corrections for testing
//! many sites.
//!
//! Effects vary between prompts, so a mean over a few prompts says little. [`Statistics`] computes how certain the mean
//! is, without assuming a distribution:
//!
//! ```
//! use hooklens::experiments::ioi_prompts;
//! use hooklens::patching::{Metric, Patching};
//! use hooklens::prelude::*;
//! use hooklens::statistics::Statistics;
//!
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let prompts = ioi_prompts(20, 0);
//! let clean: Vec<&str> = prompts.iter().map(|prompt| &*prompt.text).collect();
//! let corrupted: Vec<&str> = prompts.iter().map(|prompt| &*prompt.corrupted).collect();
//! let metric = Metric::logit_diff(
//!     &model,
//!     prompts.iter().map(|prompt| prompt.answer).collect::<Vec<_>>(),
//!     prompts.iter().map(|prompt| prompt.wrong).collect::<Vec<_>>(),
//! )?;
//! let found = Patching::new(&model, clean, corrupted, metric)?.attn_head_out_all_pos()?;
//! let statistics = found.statistics(&Statistics::new())?;
//! for (head, effect) in found.effect().largest(3) {
//!     let at = [head[0].parse::<usize>()?, head[1].parse()?];
//!     let (low, high) = (statistics.low.values()[at], statistics.high.values()[at]);
//!     let p = statistics.adjusted_p_value.values()[at];
//!     println!("L{}H{}: {effect:+.2} logits, 95 % interval {low:+.2} to {high:+.2}, p = {p:.3}", head[0], head[1]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use hooklens_analysis::error::StatisticsError;
pub use hooklens_analysis::statistics::{
    EffectStatistics, Interval, Statistics, benjamini_hochberg, success_rate_interval,
};
