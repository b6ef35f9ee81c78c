//! Errors of shards.

use std::num::ParseIntError;

use thiserror::Error;

/// A shard that does not exist, or that cannot be determined from the environment of a cluster job.
///
/// ```
/// use hooklens::dump::{Shard, ShardError};
/// let error = Shard::new(9, 8).unwrap_err();
/// assert_eq!(error.to_string(), "there is no shard 9 of 8; shards go from 1/8 to 8/8");
/// assert!(matches!(error, ShardError::Index { index: 9, of: 8 }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The number of shards is 0.
    #[error("the number of shards must be at least 1, not 0")]
    Zero,
    /// There are too many shards.
    #[error("{of} shards are too many; at most {most} are supported")]
    TooMany {
        /// The given number of shards.
        of: usize,
        /// The largest supported number.
        most: usize,
    },
    /// The shard's index is not between 1 and the number of shards.
    #[error("there is no shard {index} of {of}; shards go from 1/{of} to {of}/{of}")]
    Index {
        /// The given index.
        index: usize,
        /// The number of shards.
        of: usize,
    },
    /// The text does not have the form `3/8`.
    #[error("`{text}` is not a shard; write I/N, such as 3/8 for the third of eight shards")]
    Text {
        /// The given text.
        text: String,
    },
    /// An environment variable of the job is not a number.
    #[error("{variable} is `{value}`, not a number")]
    NotANumber {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable.
        value: String,
        /// The reason why the value is not a number.
        source: ParseIntError,
    },
    /// An environment variable of a job array is missing.
    #[error("{set} is set, but {missing} is not")]
    Missing {
        /// Name of the variable that is set.
        set: &'static str,
        /// Name of the variable that is required with it.
        missing: &'static str,
    },
    /// The step between the array's task ids is 0.
    #[error("{variable} is 0, but must be at least 1; use --shard I/N")]
    NoStep {
        /// Name of the variable.
        variable: &'static str,
    },
    /// The array's task ids are not evenly spaced.
    #[error("the array's task ids are not evenly spaced (task id {id}; {count} tasks from id {min}); use --shard I/N")]
    Uneven {
        /// The task's id.
        id: usize,
        /// The smallest id.
        min: usize,
        /// The number of tasks.
        count: usize,
    },
    /// The task's number is not less than the number of tasks.
    #[error("{variable} is {task}, which must be less than {total} ({}); use --shard I/N", count.map_or("not set".into(), |n| n.to_string()))]
    Task {
        /// Name of the variable with the task's number.
        variable: &'static str,
        /// The task's number, counted from 0.
        task: usize,
        /// Name of the variable with the number of tasks.
        total: &'static str,
        /// The number of tasks, if it is set.
        count: Option<usize>,
    },
    /// The job does not provide its number of tasks.
    #[error("{variable} does not include the number of tasks; use --shard auto/N")]
    NoCount {
        /// Name of the variable with the task's number.
        variable: &'static str,
    },
    /// The job's index is not less than the number of shards.
    #[error("{variable} is {index}; with {of} shards, it must be less than {of}")]
    JobIndex {
        /// Name of the variable.
        variable: &'static str,
        /// The index.
        index: usize,
        /// The number of shards.
        of: usize,
    },
    /// None of the variables that identify a task is set.
    #[error(
        "not running as a task of a cluster job: none of {} is set; use --shard I/N",
        variables.join(", ")
    )]
    NoJob {
        /// Names of the variables.
        variables: [&'static str; 3],
    },
    /// The job does not have the requested number of tasks.
    #[error("the job has {given} tasks, not {expected}; use --shard I/N")]
    Tasks {
        /// The job's number of tasks.
        given: usize,
        /// The requested number of shards.
        expected: usize,
    },
}
