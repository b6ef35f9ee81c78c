//! Main memory, as reported by the operating system.

/// Memory that this process may use, in bytes: the machine's, or its container's limit if that is lower.
#[cfg(target_os = "linux")]
pub(super) fn may_take() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| field(&text, "MemTotal:"));
    let own = read("/proc/self/cgroup");
    let containers = own.iter().flat_map(|text| limit_files(text)).filter_map(|path| read(&path)?.trim().parse().ok());
    machine.into_iter().chain(containers).min()
}

/// Memory that is available, in bytes.
#[cfg(target_os = "linux")]
pub(super) fn free() -> Option<u64> {
    std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| field(&text, "MemAvailable:"))
}

/// Always `None`: only Linux has files that report how much memory is available.
#[cfg(not(target_os = "linux"))]
pub(super) fn may_take() -> Option<u64> {
    None
}

/// Always `None`, as for [`may_take`].
#[cfg(not(target_os = "linux"))]
pub(super) fn free() -> Option<u64> {
    None
}

/// A value from `/proc/meminfo`, in bytes.
#[cfg(any(target_os = "linux", test))]
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Files that may limit the memory of this process's cgroup or its parents, from the text of `/proc/self/cgroup`.
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
        // In a container, the path may be the host's. The container's own limit is then at the root.
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
        assert_eq!(field("MemTotal:       16384 kB\nMemFree: 1 kB\n", "MemTotal:"), Some(16 << 20));
        assert_eq!(field("MemFree: 1 kB", "MemTotal:"), None);
        assert_eq!(
            limit_files("0::/user.slice/a\n"),
            ["/user.slice/a", "/user.slice", ""].map(|path| format!("/sys/fs/cgroup{path}/memory.max"))
        );
        assert_eq!(limit_files("5:cpu:/b\n4:hugetlb,memory:/\n"), ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]);
        assert!(limit_files("").is_empty() && limit_files("nonsense").is_empty());
        #[cfg(target_os = "linux")]
        assert!(may_take().unwrap() > 1 << 20);
    }
}
