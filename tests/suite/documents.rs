//! Documents: links resolve, and the guide's pages are listed in its contents and tested.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::root;

/// Markdown files in a folder and its subfolders.
fn markdown(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            markdown(&entry, found);
        } else if entry.extension().is_some_and(|ending| ending == "md") {
            found.push(entry);
        }
    }
}

/// The repository's documents.
pub(crate) fn documents() -> Vec<PathBuf> {
    let mut found = ["README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG"]
        .map(|name| root().join(name).with_extension("md"))
        .to_vec();
    found.extend(["hooks", "kernels", "tests/fixtures"].map(|folder| root().join(folder).join("README.md")));
    for folder in ["docs", "benches", "notebooks"] {
        markdown(&root().join(folder), &mut found);
    }
    found
}

/// A document's text outside fenced code blocks.
pub(crate) fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// Anchors of a document's headings, as GitHub and mdBook generate them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// Link targets of a document, including those within it.
fn links(text: &str) -> Vec<String> {
    let text = prose(text).replace('\n', " ");
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.is_empty() && !link.contains("://")).map(String::from).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let (documents, mut broken) = (documents(), Vec::new());
    for document in &documents {
        let text = fs::read_to_string(document).unwrap();
        for link in links(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            let found = target.exists()
                && (anchor.is_empty()
                    || anchors(&prose(&fs::read_to_string(&target).unwrap())).contains(&anchor.into()));
            if !found {
                broken.push(format!("{} -> {link}", document.display()));
            }
        }
    }
    assert!(documents.len() > 25 && broken.is_empty(), "{broken:#?}");
}

/// Links out of the book that point to this repository name an existing file.
#[test]
fn every_address_in_the_repository_is_a_file() {
    let (mut documents, mut broken) = (documents(), Vec::new());
    documents.push(root().join("src/lib.rs"));
    let mut seen = 0;
    for document in &documents {
        let text = fs::read_to_string(document).unwrap();
        for kind in ["blob/main/", "tree/main/"] {
            for rest in text.split(&format!("github.com/hooklens/hooklens/{kind}")).skip(1) {
                let path = rest.split(|c: char| c.is_whitespace() || ")#>".contains(c)).next().unwrap();
                seen += 1;
                if !root().join(path).exists() {
                    broken.push(format!("{} -> {path}", document.display()));
                }
            }
        }
    }
    assert!(seen > 3 && broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_of_the_guide_is_in_its_contents_and_a_test() {
    let (docs, mut pages) = (root().join("docs"), Vec::new());
    markdown(&docs, &mut pages);
    let contents = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let tests = fs::read_to_string(root().join("src/guide.rs")).unwrap();
    for page in pages {
        let page = page.strip_prefix(&docs).unwrap().to_string_lossy().into_owned();
        if page == "SUMMARY.md" {
            continue;
        }
        assert!(contents.contains(&format!("({page})")), "{page} is not in docs/SUMMARY.md");
        let text = fs::read_to_string(docs.join(&page)).unwrap();
        let tested = tests.contains(&format!("\"../docs/{page}\""));
        assert!(tested || !text.contains("```rust\n"), "{page} is not in src/guide.rs");
    }
}

#[test]
fn readme_is_short() {
    let lines = fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(lines <= 160, "README.md has {lines} lines; the guide has room for more");
}
