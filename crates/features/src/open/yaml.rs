//! Untrusted YAML. An alias is replaced by a copy of the anchored value, which may itself contain aliases, so a few
//! lines could expand to any amount of memory. Sizes are therefore added up before anything is copied.

use std::collections::HashMap;

use yaml_rust2::parser::{Event, Parser};
use yaml_rust2::{Yaml, YamlLoader};

/// Maximum size of the values in bytes, with aliases expanded. A configuration takes a few thousand bytes.
const LARGEST: usize = 1 << 24;
/// Maximum nesting depth of lists and mappings, because the loader is recursive.
const DEEPEST: usize = 64;
/// Size of a value in bytes, not counting its text.
const VALUE: usize = 64;

/// Parses the first document of a text; `None` if the text is empty.
pub(super) fn first(text: &str) -> Result<Option<Yaml>, String> {
    check(text)?;
    let all = YamlLoader::load_from_str(text).map_err(|error| format!("it is not valid YAML: {error}"))?;
    Ok(all.into_iter().next())
}

fn check(text: &str) -> Result<(), String> {
    let too_large = || format!("its values, with aliases expanded, are larger than {} MiB", LARGEST >> 20);
    if text.len() > LARGEST {
        return Err(too_large());
    }
    let mut parser = Parser::new_from_str(text);
    // The sizes of anchored values, the open values with their anchors, and the total size so far.
    let mut named: HashMap<usize, usize> = HashMap::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut all = 0usize;
    loop {
        let (event, _) = parser.next_token().map_err(|error| format!("it is not valid YAML: {error}"))?;
        let (anchor, size) = match event {
            Event::StreamEnd => return Ok(()),
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                if open.len() == DEEPEST {
                    return Err(format!("its lists and mappings are nested more than {DEEPEST} levels deep"));
                }
                open.push((anchor, VALUE));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop().unwrap_or_default(),
            Event::Scalar(text, _, anchor, _) => (anchor, VALUE + text.len()),
            // An alias to a value that is still open expands to nothing.
            Event::Alias(anchor) => (0, named.get(&anchor).copied().unwrap_or(VALUE)),
            _ => continue,
        };
        all = all.saturating_add(size);
        if anchor > 0 {
            // The loader keeps its own copy of anchored values.
            named.insert(anchor, size);
            all = all.saturating_add(size);
        }
        if let Some((_, outer)) = open.last_mut() {
            *outer = outer.saturating_add(size);
        }
        if all > LARGEST.saturating_mul(2) {
            return Err(too_large());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_stand_for_what_they_name() {
        let yaml = first("a: &a [1, 2]\nb: *a\nc: &b {d: *a}\n").unwrap().unwrap();
        assert_eq!(yaml["b"].as_vec().map(Vec::len), Some(2));
        assert_eq!(yaml["c"]["d"][1].as_i64(), Some(2));
        assert!(first("").unwrap().is_none());
        assert!(first("a: *b").unwrap_err().contains("not valid YAML"));
    }

    #[test]
    fn aliases_of_aliases_are_refused() {
        let levels =
            (1..12).map(|level| format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 9].join(", ")));
        let text = format!("a0: &a0 [x]\n{}", levels.collect::<String>());
        assert!(first(&text).unwrap_err().contains("larger than 16 MiB"));
        // One large text, repeated many times.
        let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 100].join(", "));
        assert!(first(&text).unwrap_err().contains("larger than 16 MiB"));
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(first(&deep(DEEPEST)).is_ok());
        assert!(first(&deep(DEEPEST + 1)).unwrap_err().contains("levels deep"));
        assert!(first(&"- ".repeat(100_000)).is_err());
        assert!(first(&"? ".repeat(100_000)).is_err());
        assert!(first(&"[".repeat(100_000)).is_err());
    }
}
