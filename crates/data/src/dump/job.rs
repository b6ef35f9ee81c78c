//! The share of a dump that a task of a cluster's job has.

use std::env;

use super::Shard;

/// What says which task this is. The last is Kubernetes's.
const ARRAY: [&str; 4] =
    ["SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_COUNT"];
const LAST: &str = "SLURM_ARRAY_TASK_MAX";
const TASK: [&str; 2] = ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"];
const INDEX: &str = "JOB_COMPLETION_INDEX";

impl Shard {
    /// The shard of the task that this process is: of a Slurm job array (`SLURM_ARRAY_TASK_ID`, `_MIN`, `_STEP`, `_COUNT`), of
    /// the tasks that `srun` started (`SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`), or of both, the tasks of the array's first
    /// first; of a Kubernetes indexed job (`JOB_COMPLETION_INDEX`), which does not say of how many: `of` does.
    ///
    /// ```
    /// use hooklens::dump::Shard;
    /// // Outside of a job there is nothing to go by.
    /// let told = Shard::of_job(Some(8)).unwrap_err();
    /// assert!(told.contains("SLURM_ARRAY_TASK_ID") && told.contains("JOB_COMPLETION_INDEX"));
    /// ```
    ///
    /// # Errors
    /// What is missing or does not fit: no such variables, another number of tasks than `of`, tasks that are not evenly apart.
    pub fn of_job(of: Option<usize>) -> Result<Self, String> {
        of_variables(|name| env::var(name).ok(), of)
    }
}

fn of_variables(variable: impl Fn(&str) -> Option<String>, of: Option<usize>) -> Result<Shard, String> {
    let number = |name: &str| match variable(name).filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(value) => value.trim().parse::<usize>().map(Some).map_err(|_| format!("{name} is `{value}`, no number")),
    };
    let needed = |name: &str| number(name)?.ok_or_else(|| format!("{} is set, and {name} is not", ARRAY[0]));
    let explicit = "write --shard I/N";
    let array = match number(ARRAY[0])? {
        None => None,
        Some(id) => {
            let [min, step, count] = [needed(ARRAY[1])?, number(ARRAY[2])?.unwrap_or(1), needed(ARRAY[3])?];
            if step == 0 {
                return Err(format!("{} is 0; {explicit}", ARRAY[2]));
            }
            // Of tasks 0, 1, 2 and 9 the first three would fit.
            let even =
                number(LAST)?.is_none_or(|last| last.checked_sub(min).is_some_and(|all| all / step + 1 == count));
            let place = id.checked_sub(min).filter(|place| even && place % step == 0 && place / step < count);
            let uneven =
                || format!("task {id} of {count} from {min}: the array's tasks are not evenly apart; {explicit}");
            Some((place.ok_or_else(uneven)? / step, count))
        }
    };
    let tasks = match (number(TASK[0])?, number(TASK[1])?) {
        (Some(task), Some(count)) if task >= count => {
            return Err(format!("{} is {task}, and {} is {count}; {explicit}", TASK[0], TASK[1]));
        }
        (Some(task), None) if task > 0 => {
            return Err(format!("{} is {task}, and {} is not set; {explicit}", TASK[0], TASK[1]));
        }
        (Some(task), Some(count)) if count > 1 => Some((task, count)),
        _ => None,
    };
    let (index, count) = match (array, tasks, number(INDEX)?) {
        (Some((place, count)), Some((task, tasks)), _) => (place * tasks + task, count * tasks),
        (Some(only), None, _) | (None, Some(only), _) => only,
        (None, None, Some(index)) => {
            let of = of.ok_or_else(|| format!("{INDEX} does not say of how many; write --shard auto/N"))?;
            return Shard::new(index.saturating_add(1), of)
                .map_err(|_| format!("{INDEX} is {index}, and there are {of} shards, the first of index 0"));
        }
        (None, None, None) => {
            return Err(format!(
                "this is no task of a job: neither {}, {} nor {INDEX} is set; {explicit}",
                ARRAY[0], TASK[0]
            ));
        }
    };
    match of.filter(|of| *of != count) {
        Some(of) => Err(format!("the job has {count} tasks, not {of}; {explicit}")),
        None => Shard::new(index + 1, count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(variables: &[(&str, &str)], of: Option<usize>) -> Result<String, String> {
        let find = |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_string());
        of_variables(find, of).map(|shard| shard.to_string())
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
        // An array of 1, 5 and 6 says that it has three tasks, one apart.
        assert!(shard(&array("6", "1", "1", "3"), None).unwrap_err().contains("evenly"));
        assert!(shard(&array("5", "0", "2", "4"), None).unwrap_err().contains("evenly"));
        // Of 0, 1, 2 and 9 too the first three can't be told by their own numbers.
        let until = |last| [&array("2", "0", "1", "4")[..], &[(LAST, last)]].concat();
        assert!(shard(&until("9"), None).unwrap_err().contains("evenly"));
        assert_eq!(shard(&until("3"), None).unwrap(), "3/4");
        assert!(shard(&array("2", "0", "0", "4"), None).unwrap_err().contains(ARRAY[2]));
        // Two tasks of eight that are run again are not two halves.
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
        // A batch script is one task, and no share of anything.
        assert!(shard(&[(TASK[0], "0"), (TASK[1], "1")], None).unwrap_err().contains("no task"));
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
