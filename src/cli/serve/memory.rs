//! How much main memory a session's process may take.

/// What a session may take where nothing is said: 0.8 of this machine's memory, or of what its container may have.
#[cfg(target_os = "linux")]
pub(super) fn default_limit() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| total(&text));
    let own = read("/proc/self/cgroup");
    let containers = own.iter().flat_map(|text| limit_files(text)).filter_map(|path| read(&path)?.trim().parse().ok());
    machine.into_iter().chain(containers).min().map(|bytes: u64| bytes / 5 * 4)
}

/// Nothing: no limit is set elsewhere.
#[cfg(not(target_os = "linux"))]
pub(super) fn default_limit() -> Option<u64> {
    None
}

/// Limits the memory of this process: an allocation beyond it fails. A crash leaves no file with its memory.
#[cfg(target_os = "linux")]
pub(super) fn limit(bytes: Option<u64>) -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let set = |kind, most: u64| {
        // A limit that is there already can't be raised.
        let most = getrlimit(kind).maximum.map_or(most, |already| already.min(most));
        setrlimit(kind, Rlimit { current: Some(most), maximum: Some(most) })
    };
    set(Resource::Core, 0).map_err(|e| format!("can't turn core files off: {e}"))?;
    bytes.map_or(Ok(()), |most| set(Resource::Data, most)).map_err(|e| format!("can't limit the memory: {e}"))
}

/// Nothing: these systems bound no process by what it allocates.
#[cfg(not(target_os = "linux"))]
pub(super) fn limit(_bytes: Option<u64>) -> Result<(), String> {
    Ok(())
}

/// The machine's memory, by `/proc/meminfo`.
#[cfg(any(target_os = "linux", test))]
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The files that may hold a limit of this process's groups or of the groups they are in, by `/proc/self/cgroup`.
#[cfg(any(target_os = "linux", test))]
fn limit_files(text: &str) -> Vec<String> {
    let mut files = vec![];
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        // In a container the path may be the host's; the group's own limit then lies at the root.
        let mut path = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{path}/{name}"));
            let Some((above, _)) = path.rsplit_once('/') else { break };
            path = above;
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_of_memory() {
        assert_eq!(total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total("MemFree: 1 kB"), None);
        assert_eq!(
            limit_files("0::/user.slice/a\n"),
            ["/user.slice/a", "/user.slice", ""].map(|path| format!("/sys/fs/cgroup{path}/memory.max"))
        );
        assert_eq!(limit_files("5:cpu:/b\n4:hugetlb,memory:/\n"), ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]);
        assert!(limit_files("").is_empty() && limit_files("nonsense").is_empty());
        #[cfg(target_os = "linux")]
        assert!(default_limit().unwrap() > 1 << 20);
    }
}
