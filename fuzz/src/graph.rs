//! A graph in Neuronpedia's schema is either rejected, or written to a page from which it can be read again.

use hooklens::attribution::graph::GraphFile;

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("graph.json");
    std::fs::write(&path, bytes).expect("a file");
    let Ok(graph) = GraphFile::open(&path) else { return };
    // The graph's contents must not close the script element that contains them.
    let page = folder.path().join("graph.html");
    graph.save(&page).expect("a page");
    let page = std::fs::read_to_string(page).expect("text");
    assert_eq!(page.matches("</script").count(), PAGE.matches("</script").count());
    graph.save(&path).expect("a file");
    assert_eq!(GraphFile::open(&path).expect("a graph").json(), graph.json());
}

const PAGE: &str = include_str!("../../crates/features/src/graph/page.html");
