//! YAML of strangers. An alias stands for a copy of what its anchor names, which may hold aliases itself: a few lines could
//! ask for any amount of memory. Sizes are added up before anything is copied.

use std::collections::HashMap;

use yaml_rust2::parser::{Event, Parser};
use yaml_rust2::{Yaml, YamlLoader};

/// Bytes of the values at most, aliases replaced by what they stand for: a configuration has a few thousand.
const LARGEST: usize = 1 << 24;
/// Lists and mappings within one another at most: the loader calls itself for each.
const DEEPEST: usize = 64;
/// Bytes of a value, beside those of its text.
const VALUE: usize = 64;

/// The first document of a text; nothing of an empty one.
pub(super) fn first(text: &str) -> Result<Option<Yaml>, String> {
    check(text)?;
    let all = YamlLoader::load_from_str(text).map_err(|error| format!("it is not sound YAML: {error}"))?;
    Ok(all.into_iter().next())
}

fn check(text: &str) -> Result<(), String> {
    let too_large = || format!("its values, aliases replaced, are larger than {} MiB", LARGEST >> 20);
    if text.len() > LARGEST {
        return Err(too_large());
    }
    let mut parser = Parser::new_from_str(text);
    // Sizes of what anchors name; the values that are open, with their anchors; all so far.
    let mut named: HashMap<usize, usize> = HashMap::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut all = 0usize;
    loop {
        let (event, _) = parser.next_token().map_err(|error| format!("it is not sound YAML: {error}"))?;
        let (anchor, size) = match event {
            Event::StreamEnd => return Ok(()),
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                if open.len() == DEEPEST {
                    return Err(format!("it has more than {DEEPEST} lists and mappings within one another"));
                }
                open.push((anchor, VALUE));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop().unwrap_or_default(),
            Event::Scalar(text, _, anchor, _) => (anchor, VALUE + text.len()),
            // One of a value that is still open stands for nothing.
            Event::Alias(anchor) => (0, named.get(&anchor).copied().unwrap_or(VALUE)),
            _ => continue,
        };
        all = all.saturating_add(size);
        if anchor > 0 {
            // The loader keeps a copy of its own.
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
        assert!(first("a: *b").unwrap_err().contains("not sound YAML"));
    }

    #[test]
    fn aliases_of_aliases_are_refused() {
        let levels =
            (1..12).map(|level| format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 9].join(", ")));
        let text = format!("a0: &a0 [x]\n{}", levels.collect::<String>());
        assert!(first(&text).unwrap_err().contains("larger than 16 MiB"));
        // One large text, many times.
        let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 100].join(", "));
        assert!(first(&text).unwrap_err().contains("larger than 16 MiB"));
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(first(&deep(DEEPEST)).is_ok());
        assert!(first(&deep(DEEPEST + 1)).unwrap_err().contains("within one another"));
        assert!(first(&"- ".repeat(100_000)).is_err());
        assert!(first(&"? ".repeat(100_000)).is_err());
        assert!(first(&"[".repeat(100_000)).is_err());
    }
}
