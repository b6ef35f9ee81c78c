//! The `--shard` argument, which selects a job's part of the work.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::out::plural;
use super::{CliResult, Failure};
use hooklens_data::dump::{Shard, SplitByShard, folders, shard_of_job};
use hooklens_data::error::ShardError;
use hooklens_io::object_stores::is_url;
use hooklens_model::error::{Error, error_chain};

/// A shard that is given explicitly or taken from the job's environment variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShardArg {
    Given(Shard),
    /// Taken from the environment, with the total number of shards if it was given.
    Auto(Option<usize>),
}

impl FromStr for ShardArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("auto") {
            Some("") => Ok(Self::Auto(None)),
            Some(of) => {
                let count = of.strip_prefix('/').and_then(|of| of.parse().ok()).filter(|of| *of > 0);
                count
                    .map(|of| Self::Auto(Some(of)))
                    .ok_or_else(|| format!("`{text}` is not a valid shard; expected auto or auto/N, such as auto/8"))
            }
            None => text.parse().map(Self::Given).map_err(|error: ShardError| error.to_string()),
        }
    }
}

/// Name of a shard's folder, or of its file without the extension.
pub(super) fn name_of(shard: Shard) -> String {
    format!("{:05}-of-{:05}", shard.index(), shard.of())
}

/// Folder of a shard of a dump, inside the folder of all shards.
pub(super) fn folder_of(shard: Shard, out: &Path) -> PathBuf {
    out.join(name_of(shard))
}

/// Total number of shards, if `name` is the name of a shard.
pub(super) fn shares_of(name: &str) -> Option<usize> {
    let (index, of) = name.split_once("-of-")?;
    let numbers = [index, of].iter().all(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    of.parse().ok().filter(|_| numbers)
}

impl ShardArg {
    pub(super) fn shard(self) -> Result<Shard, Failure> {
        match self {
            Self::Given(shard) => Ok(shard),
            Self::Auto(of) => shard_of_job(of).map_err(|error| Failure::Usage(error_chain(&error))),
        }
    }

    /// Fails if the folder contains shards of a different total count: resubmitting some tasks of a job makes a new
    /// job, with a different number of tasks.
    pub(super) fn check(self, shard: Shard, out: &Path) -> CliResult {
        let folders = match is_url(out) {
            true => folders(out).map_err(Error::from)?,
            // The folder may not exist yet.
            false => folders(out).unwrap_or_default(),
        };
        let names = folders.iter().filter_map(|folder| folder.file_name());
        let other = names.filter_map(|name| shares_of(name.to_str()?)).find(|of| *of != shard.of());
        match other {
            None => Ok(()),
            Some(other) => Err(Failure::Usage(format!(
                "{} {}, but {} contains shards of a job with {other} tasks; to rerun single tasks of that job, pass \
                 --shard I/{other}",
                if self.resumes() { "this job has" } else { "--shard specifies" },
                plural(shard.of(), "task"),
                out.display(),
            ))),
        }
    }

    /// Whether a restarted job resumes automatically.
    pub(super) fn resumes(self) -> bool {
        matches!(self, Self::Auto(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_given_or_the_jobs() {
        assert_eq!("3/8".parse(), Ok(ShardArg::Given(Shard::new(3, 8).unwrap())));
        assert_eq!("auto".parse(), Ok(ShardArg::Auto(None)));
        assert_eq!("auto/8".parse(), Ok(ShardArg::Auto(Some(8))));
        for wrong in ["auto/0", "auto8", "auto/x", "9/8", ""] {
            assert!(wrong.parse::<ShardArg>().is_err(), "{wrong}");
        }
        let shard = Shard::new(3, 8).unwrap();
        assert_eq!(folder_of(shard, Path::new("acts")), Path::new("acts/00003-of-00008"));
    }
}
