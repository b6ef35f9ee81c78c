//! What stands on what: no circle of imports between the folders of the source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Graph = BTreeMap<String, BTreeSet<String>>;

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The folders, or files at the root, that the code of a file names behind `crate::`; unit tests and comments left out.
fn imports(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let named = lines.flat_map(|line| line.split("crate::").skip(1));
    named.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
}

/// Who imports whom below `src/`.
fn graph(src: &Path) -> Graph {
    let mut graph = Graph::new();
    let code = |path: &PathBuf| path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs");
    for path in files(src).into_iter().filter(code) {
        let first = path.strip_prefix(src).unwrap().components().next().unwrap();
        let folder = Path::new(first.as_os_str()).with_extension("").to_str().unwrap().to_string();
        // The roof: what these name is what users may.
        if ["lib", "main", "prelude", "guide"].contains(&&*folder) {
            continue;
        }
        let mut named = imports(&fs::read_to_string(&path).unwrap());
        named.remove(&folder);
        graph.entry(folder).or_default().extend(named);
    }
    graph
}

/// A circle, if there is one: each folder imports the next, and the last the first.
fn circle(graph: &Graph) -> Option<Vec<String>> {
    fn walk(at: &str, graph: &Graph, path: &mut Vec<String>, done: &mut BTreeSet<String>) -> Option<Vec<String>> {
        if let Some(place) = path.iter().position(|name| name == at) {
            return Some(path[place..].to_vec());
        }
        if !done.insert(at.to_string()) {
            return None;
        }
        path.push(at.to_string());
        let found = graph.get(at).into_iter().flatten().find_map(|next| walk(next, graph, path, done));
        path.pop();
        found
    }
    graph.keys().find_map(|name| walk(name, graph, &mut Vec::new(), &mut BTreeSet::new()))
}

/// `eprintln!` panics where standard error is full or closed: `src/stderr.rs` writes there, and nothing else does.
#[test]
fn one_place_writes_to_standard_error() {
    let root = crate::support::root();
    let all = ["src", "hooks/src", "kernels/src"].iter().flat_map(|folder| files(&root.join(folder)));
    for path in all.filter(|path| path.extension().is_some_and(|e| e == "rs") && !path.ends_with("src/stderr.rs")) {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let found = code.filter(|line| {
            ["eprint", "dbg!(", "stderr().write", "(std::io::stderr()", "stderr().lock"]
                .iter()
                .any(|word| line.contains(word))
        });
        assert_eq!(found.collect::<Vec<_>>(), Vec::<&str>::new(), "{}", path.display());
    }
}

#[test]
fn no_circle_of_imports_between_folders() {
    let graph = graph(&crate::support::root().join("src"));
    assert!(graph.len() > 20 && graph["model"].contains("kv_cache"), "{graph:?}");
    assert_eq!(circle(&graph), None);
    // Names of the crate's root would hide where a thing comes from.
    let hidden = |name: &&String| name.starts_with(char::is_uppercase);
    let from_root: Vec<_> =
        graph.iter().filter_map(|(folder, named)| Some((folder, named.iter().find(hidden)?))).collect();
    assert!(from_root.is_empty(), "{from_root:?}");
}

#[test]
fn circles_are_found() {
    let text = "use crate::b::C; // crate::d\n/// crate::e\nfn f() { crate::g::h() }\n";
    assert_eq!(imports(text).into_iter().collect::<Vec<_>>(), ["b", "d", "g"]);
    let to = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    let straight: Graph = [("a".into(), to(&["b", "c"])), ("b".into(), to(&["c"])), ("c".into(), to(&[]))].into();
    assert_eq!(circle(&straight), None);
    let around: Graph = [("a".into(), to(&["b"])), ("b".into(), to(&["c"])), ("c".into(), to(&["b"]))].into();
    assert_eq!(circle(&around), Some(vec!["b".to_string(), "c".to_string()]));
}
