//! Module dependencies: no import cycles between the folders of the source, or between the files of some of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::root;

type Graph = BTreeMap<String, BTreeSet<String>>;

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The source files of a folder, without those of unit tests.
fn sources_in(src: &Path) -> impl Iterator<Item = PathBuf> {
    files(src).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs"))
}

/// The lines of a file without unit tests and comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    code.lines().filter(|line| !line.trim_start().starts_with("//"))
}

/// Folders, or files at the root, that a file imports after `crate::`.
fn imports(text: &str) -> BTreeSet<String> {
    let lines = code(text);
    let named = lines.flat_map(|line| line.split("crate::").skip(1));
    named.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
}

/// What a crate's `lib.rs` re-exports, with the module that each name comes from.
fn exports(lib: &str) -> BTreeMap<String, String> {
    let uses = lib.split("use ").skip(1).filter_map(|rest| rest.split(';').next()?.split_once("::"));
    let named = uses.flat_map(|(module, names)| {
        let names = names.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        names.filter(|name| !name.is_empty()).map(|name| (name.to_string(), module.to_string()))
    });
    named.collect()
}

/// The import graph below a `src/`.
fn graph(src: &Path) -> Graph {
    let exports = exports(&fs::read_to_string(src.join("lib.rs")).unwrap());
    let mut graph = Graph::new();
    for path in sources_in(src) {
        let first = path.strip_prefix(src).unwrap().components().next().unwrap();
        let folder = Path::new(first.as_os_str()).with_extension("").to_str().unwrap().to_string();
        // The top level, which defines the public interface.
        if ["lib", "main", "prelude", "guide"].contains(&&*folder) {
            continue;
        }
        let named = imports(&fs::read_to_string(&path).unwrap()).into_iter();
        let mut named: BTreeSet<String> = named.map(|name| exports.get(&name).cloned().unwrap_or(name)).collect();
        named.remove(&folder);
        graph.entry(folder).or_default().extend(named);
    }
    graph
}

/// The paths that each module names, in a `use`, a `pub use`, or elsewhere (`""`).
type Paths = BTreeMap<String, Vec<(String, &'static str)>>;

/// The paths of a `use`: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn spelled_out(tree: &str) -> Vec<String> {
    let Some((stem, inner)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap().trim().to_string()];
    };
    let mut depth = 1;
    let parts = inner.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0 || (depth == 1 && c == ',')
    });
    let parts = parts.filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| spelled_out(&format!("{}{}", stem.trim(), part.trim()))).collect()
}

/// The paths that a file names in its `use` statements or elsewhere.
fn paths(text: &str) -> Vec<(String, &'static str)> {
    let mut all = code(text).fold(String::new(), |all, line| all + "\n" + line);
    for (long, short) in [("pub(crate) use ", "pub use "), ("pub(super) use ", "pub use "), ("::<", "<")] {
        all = all.replace(long, short);
    }
    let stated = |start: &'static str| {
        let line = format!("\n{start} ");
        let trees = all.split(&line).skip(1).filter_map(|rest| rest.split_once(';'));
        trees.flat_map(|(tree, _)| spelled_out(tree)).map(|path| (path, start)).collect::<Vec<_>>()
    };
    let words = all.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    let inline = words.filter(|word| ["crate::", "super::"].iter().any(|start| word.starts_with(start)));
    let inline = inline.filter(|word| !word.ends_with("::")).map(|word| (word.to_string(), ""));
    stated("use").into_iter().chain(stated("pub use")).chain(inline).collect()
}

/// The module that defines what a path in module `from` names; `None` for paths outside the crate.
fn defined_in(path: &str, from: &str, modules: &Paths) -> Option<String> {
    let inside = |module: &str, name: &str| if module.is_empty() { name.into() } else { format!("{module}::{name}") };
    let (mut at, mut names) = (from.to_string(), path.split("::").peekable());
    match *names.peek()? {
        "crate" => at.clear(),
        "self" | "super" => {}
        child if modules.contains_key(&inside(from, child)) => {}
        _ => return None,
    }
    while let Some(name) = names.next_if(|name| ["crate", "self", "super"].contains(name)) {
        if name == "super" {
            at.truncate(at.rfind("::").unwrap_or(0));
        }
    }
    while let Some(name) = names.next_if(|name| modules.contains_key(&inside(&at, name))) {
        at = inside(&at, name);
    }
    let Some(name) = names.next() else { return Some(at) };
    let is = |(path, start): &&(String, &str)| {
        !start.is_empty() && path.rsplit_once("::").is_some_and(|(_, last)| last == name)
    };
    let through = modules[&at].iter().find(is);
    Some(through.and_then(|(path, _)| defined_in(path, &at, modules)).unwrap_or(at))
}

/// The imports between modules. A module that re-exports what is defined below it does not import that.
fn imports_of_modules(modules: &Paths) -> Graph {
    let named = modules.iter().map(|(from, paths)| {
        let found = paths.iter().filter_map(|(path, start)| Some((defined_in(path, from, modules)?, *start)));
        let below =
            |module: &str| module.strip_prefix(&**from).is_some_and(|rest| from.is_empty() || rest.starts_with("::"));
        let found = found.filter(|(module, start)| module != from && !(*start == "pub use" && below(module)));
        (from.clone(), found.map(|(module, _)| module).collect())
    });
    named.collect()
}

/// The import graph between the files below a `src/`: `a/b.rs` and `a/b/mod.rs` are `a::b`, and `lib.rs` is empty.
fn graph_of_files(src: &Path) -> Graph {
    let modules = sources_in(src).map(|path| {
        let name = path.strip_prefix(src).unwrap().with_extension("");
        let names: Vec<_> =
            name.iter().map(|name| name.to_str().unwrap()).filter(|name| !["lib", "mod"].contains(name)).collect();
        (names.join("::"), paths(&fs::read_to_string(path).unwrap()))
    });
    imports_of_modules(&modules.collect())
}

/// The `src/` folders of all crates.
fn sources() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let inner = ["hooks", "kernels"].map(|name| root().join(name));
    crates.chain(inner).map(|path| path.join("src")).collect()
}

/// An import cycle, if there is one: each folder or file imports the next, and the last imports the first.
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

/// `eprintln!` panics if standard error is full or closed. Only `crates/io/src/stderr.rs` writes to it.
#[test]
fn one_place_writes_to_standard_error() {
    let all = sources().into_iter().flat_map(|folder| files(&folder));
    for path in all.filter(|path| path.extension().is_some_and(|e| e == "rs") && !path.ends_with("io/src/stderr.rs")) {
        let text = fs::read_to_string(&path).unwrap();
        let found = code(&text).filter(|line| {
            ["eprint", "dbg!(", "stderr().write", "(std::io::stderr()", "stderr().lock"]
                .iter()
                .any(|word| line.contains(word))
        });
        assert_eq!(found.collect::<Vec<_>>(), Vec::<&str>::new(), "{}", path.display());
    }
}

#[test]
fn no_circle_of_imports_between_folders() {
    let crates = sources();
    assert!(crates.len() > 8, "{crates:?}");
    for src in crates {
        let graph = graph(&src);
        assert!(!graph.is_empty(), "{}", src.display());
        assert_eq!(circle(&graph), None, "{}", src.display());
    }
    let model = graph(&root().join("crates/model/src"));
    assert!(model["model"].contains("kv_cache"), "{model:?}");
}

#[test]
fn no_circle_of_imports_between_files() {
    for (src, below) in [("hooks/src", ""), ("kernels/src", ""), ("crates/features/src", "graph")] {
        let mut graph = graph_of_files(&root().join(src));
        graph.retain(|file, _| file.starts_with(below));
        assert!(graph.len() > 20, "{src}: {graph:?}");
        assert_eq!(circle(&graph), None, "{src}");
    }
}

/// Manifests list only crates below their own, so that nothing is compiled for a program that does not use it.
#[test]
fn the_library_does_not_depend_on_the_command_line() {
    for src in sources().into_iter().filter(|src| !src.ends_with("cli/src")) {
        let manifest = fs::read_to_string(src.with_file_name("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
        for unwanted in ["hooklens-cli", "clap", "signal-hook", "hooklens ="] {
            assert!(!dependencies.contains(unwanted), "{}: {unwanted}", src.display());
        }
    }
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

#[test]
fn imports_of_files_are_found() {
    let texts = [
        ("", "mod a;\nmod b;\npub use a::A;\npub use b::{B, c::C};"),
        ("a", "use crate::b::{B, c::{self, C as D}};\nuse std::fmt;\n// use crate::d::D;"),
        ("b", "mod c;\npub(crate) use c::C;\nuse c::private;"),
        ("b::c", "fn f() -> super::B { crate::d::new::<u8>() }"),
        ("d", "use crate::b::C;"),
    ];
    let modules = texts.map(|(name, text)| (name.to_string(), paths(text))).into();
    let graph = imports_of_modules(&modules);
    let found = graph.iter().map(|(name, to)| (&**name, to.iter().map(|to| &**to).collect::<Vec<_>>()));
    let expected =
        [("", vec![]), ("a", vec!["b", "b::c"]), ("b", vec!["b::c"]), ("b::c", vec!["b", "d"]), ("d", vec!["b::c"])];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    assert_eq!(circle(&graph), Some(vec!["b".to_string(), "b::c".to_string()]));
}
