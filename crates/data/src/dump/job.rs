//! The shard of a dump that belongs to a task of a cluster job.

use std::env;

use super::Shard;
use crate::error::ShardError;

/// Environment variables that identify a task. `INDEX` is set by Kubernetes, the others by Slurm.
const ARRAY: [&str; 4] =
    ["SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_COUNT"];
const LAST: &str = "SLURM_ARRAY_TASK_MAX";
const TASK: [&str; 2] = ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"];
const INDEX: &str = "JOB_COMPLETION_INDEX";

/// Determines the shard of the task that runs this process. In a Slurm job array, reads `SLURM_ARRAY_TASK_ID`, `_MIN`,
/// `_STEP` and `_COUNT`; under `srun`, `SLURM_PROCID` and `SLURM_STEP_NUM_TASKS`; and all of these when an array task
/// runs `srun`, with shards ordered by array index first. In a Kubernetes indexed job, reads `JOB_COMPLETION_INDEX`;
/// Kubernetes does not provide the number of tasks, so `of` is required.
///
/// ```
/// use hooklens_data::{dump::shard_of_job, error::ShardError};
/// // Outside a job, none of the variables are set.
/// let error = shard_of_job(Some(8)).unwrap_err();
/// assert!(matches!(error, ShardError::NoJob { .. }) && error.to_string().contains("SLURM_ARRAY_TASK_ID"));
/// ```
///
/// # Errors
/// [`ShardError`] if the variables are missing, incomplete or not numbers, if the number of tasks differs from `of`, or
/// if the array's task ids are not evenly spaced.
pub fn shard_of_job(of: Option<usize>) -> Result<Shard, ShardError> {
    of_variables(|name| env::var(name).ok(), of)
}

fn of_variables(variable: impl Fn(&str) -> Option<String>, of: Option<usize>) -> Result<Shard, ShardError> {
    let number = |name: &'static str| match variable(name).filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(value) => match value.trim().parse::<usize>() {
            Ok(number) => Ok(Some(number)),
            Err(source) => Err(ShardError::NotANumber { variable: name, value, source }),
        },
    };
    let needed = |name| number(name)?.ok_or(ShardError::Missing { set: ARRAY[0], missing: name });
    let array = match number(ARRAY[0])? {
        None => None,
        Some(id) => {
            let [min, step, count] = [needed(ARRAY[1])?, number(ARRAY[2])?.unwrap_or(1), needed(ARRAY[3])?];
            if step == 0 {
                return Err(ShardError::NoStep { variable: ARRAY[2] });
            }
            // For ids 0, 1, 2 and 9, the first three tasks would otherwise pass.
            let even =
                number(LAST)?.is_none_or(|last| last.checked_sub(min).is_some_and(|all| all / step + 1 == count));
            let place = id.checked_sub(min).filter(|place| even && place % step == 0 && place / step < count);
            Some((place.ok_or(ShardError::Uneven { id, min, count })? / step, count))
        }
    };
    let tasks = match (number(TASK[0])?, number(TASK[1])?) {
        (Some(task), count) if count.map_or(task > 0, |count| task >= count) => {
            return Err(ShardError::Task { variable: TASK[0], task, total: TASK[1], count });
        }
        (Some(task), Some(count)) if count > 1 => Some((task, count)),
        _ => None,
    };
    let (index, count) = match (array, tasks, number(INDEX)?) {
        (Some((place, count)), Some((task, tasks)), _) => (place * tasks + task, count * tasks),
        (Some(only), None, _) | (None, Some(only), _) => only,
        (None, None, Some(index)) => {
            let of = of.ok_or(ShardError::NoCount { variable: INDEX })?;
            return Shard::new(index.saturating_add(1), of).map_err(|error| match error {
                ShardError::Index { .. } => ShardError::JobIndex { variable: INDEX, index, of },
                other => other,
            });
        }
        (None, None, None) => return Err(ShardError::NoJob { variables: [ARRAY[0], TASK[0], INDEX] }),
    };
    match of.filter(|of| *of != count) {
        Some(of) => Err(ShardError::Tasks { given: count, expected: of }),
        None => Shard::new(index + 1, count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(variables: &[(&str, &str)], of: Option<usize>) -> Result<String, String> {
        let find = |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_string());
        of_variables(find, of).map(|shard| shard.to_string()).map_err(|error| error.to_string())
    }

    fn array(
        id: &'static str,
        min: &'static str,
        step: &'static str,
        count: &'static str,
    ) -> Vec<(&'static str, &'static str)> {
        ARRAY.into_iter().zip([id, min, step, count]).collect()
    }

    #[test]
    fn tasks_of_arrays() {
        assert_eq!(shard(&array("0", "0", "1", "4"), None).unwrap(), "1/4");
        assert_eq!(shard(&array("3", "0", "1", "4"), Some(4)).unwrap(), "4/4");
        assert_eq!(shard(&array("14", "10", "2", "3"), None).unwrap(), "3/3");
        // For ids 1, 5 and 6, Slurm reports three tasks with step 1.
        assert!(shard(&array("6", "1", "1", "3"), None).unwrap_err().contains("evenly"));
        assert!(shard(&array("5", "0", "2", "4"), None).unwrap_err().contains("evenly"));
        // For ids 0, 1, 2 and 9, the first three tasks' own ids look consistent.
        let until = |last| [&array("2", "0", "1", "4")[..], &[(LAST, last)]].concat();
        assert!(shard(&until("9"), None).unwrap_err().contains("evenly"));
        assert_eq!(shard(&until("3"), None).unwrap(), "3/4");
        assert!(shard(&array("2", "0", "0", "4"), None).unwrap_err().contains(ARRAY[2]));
        // Rerunning two of eight tasks does not make them two halves.
        assert!(shard(&array("4", "3", "1", "2"), Some(8)).unwrap_err().contains("2 tasks, not 8"));
        assert!(shard(&array("x", "0", "1", "2"), None).unwrap_err().contains("`x`"));
        assert!(shard(&[(ARRAY[0], "1")], None).unwrap_err().contains(ARRAY[1]));
    }

    #[test]
    fn tasks_of_steps_and_of_both() {
        let tasks = [(TASK[0], "2"), (TASK[1], "4")];
        assert_eq!(shard(&tasks, None).unwrap(), "3/4");
        assert_eq!(shard(&[&array("1", "0", "1", "2")[..], &tasks].concat(), None).unwrap(), "7/8");
        assert!(shard(&[(TASK[0], "4"), (TASK[1], "4")], None).unwrap_err().contains("is 4"));
        assert!(shard(&[(TASK[0], "1")], None).unwrap_err().contains(TASK[1]));
        // A batch script is a single task, not a shard.
        assert!(shard(&[(TASK[0], "0"), (TASK[1], "1")], None).unwrap_err().contains("none of"));
    }

    #[test]
    fn indexes_of_kubernetes() {
        assert_eq!(shard(&[(INDEX, "0")], Some(3)).unwrap(), "1/3");
        let beyond = shard(&[(INDEX, "3")], Some(3)).unwrap_err();
        assert!(beyond.contains(INDEX) && beyond.contains("is 3"), "{beyond}");
        assert!(shard(&[(INDEX, "1")], None).unwrap_err().contains("auto/N"));
        assert!(shard(&[], Some(3)).unwrap_err().contains(INDEX));
    }
}
