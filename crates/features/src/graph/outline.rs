//! Validates graph files before parsing them into JSON values, which need many times the memory of the text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Checks that the bytes are a graph in Neuronpedia's schema, and describes what is wrong otherwise.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let mut ids = HashSet::new();
    each(bytes, "nodes", |place, node: Node<'_>| {
        ids.insert(node.node_id.ok_or_else(|| format!("node {place} has no `node_id`"))?);
        Ok(())
    })?;
    each(bytes, "links", |place, link: Link<'_>| {
        for (end, id) in [("source", link.source), ("target", link.target)] {
            let id = id.ok_or_else(|| format!("link {place} has no `{end}`"))?;
            if !ids.contains(&id) {
                return Err(format!("link {place} refers to the node `{id}`, which does not exist"));
            }
        }
        match link.weight.is_some_and(f64::is_finite) {
            true => Ok(()),
            false => Err(format!("link {place} has no finite `weight`")),
        }
    })
}

#[derive(Deserialize)]
struct Node<'a> {
    #[serde(borrow)]
    node_id: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Link<'a> {
    #[serde(borrow)]
    source: Option<Cow<'a, str>>,
    #[serde(borrow)]
    target: Option<Cow<'a, str>>,
    weight: Option<f64>,
}

/// Calls `look` on each entry of a list in the top-level object.
fn each<'de, T: Deserialize<'de>>(
    bytes: &'de [u8],
    list: &str,
    look: impl FnMut(usize, T) -> Result<(), String>,
) -> Result<(), String> {
    let none = || format!("it has no list `{list}`");
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(none());
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let mut said = None;
    let lists = reader.deserialize_map(Lists { list, entries: Entries { look, said: &mut said, of: PhantomData } });
    let lists = lists.and_then(|lists| reader.end().map(|()| lists));
    match (said, lists) {
        (Some(said), _) => Err(said),
        (None, Ok(1)) => Ok(()),
        (None, Ok(0)) => Err(none()),
        (None, Ok(count)) => Err(format!("it has {count} `{list}` lists; expected one")),
        (None, Err(error)) => Err(error.to_string()),
    }
}

/// Visitor that finds the list and counts how often it occurs.
struct Lists<'l, E> {
    list: &'l str,
    entries: E,
}

impl<'de, T: Deserialize<'de>, F: FnMut(usize, T) -> Result<(), String>> Visitor<'de> for Lists<'_, Entries<'_, T, F>> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with a list `{}`", self.list)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<usize, A::Error> {
        let mut count = 0;
        while let Some(name) = fields.next_key::<Cow<'_, str>>()? {
            if name == self.list {
                fields.next_value_seed(&mut self.entries)?;
                count += 1;
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(count)
    }
}

/// Visitor that calls `look` on each entry of a list.
struct Entries<'s, T, F> {
    look: F,
    /// Message for the first invalid entry.
    said: &'s mut Option<String>,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, F: FnMut(usize, T) -> Result<(), String>> DeserializeSeed<'de>
    for &mut Entries<'_, T, F>
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(usize, T) -> Result<(), String>> Visitor<'de> for &mut Entries<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut place = 0;
        while let Some(entry) = list.next_element::<T>()? {
            if let Err(said) = (self.look)(place, entry) {
                *self.said = Some(said);
                return Err(A::Error::custom("an entry is wrong"));
            }
            place += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_graph_is_told() {
        let graph = r#"{"links": [{"weight": 1, "target": "a\n", "source": "b", "x": []}], "x": [[{}]], "nodes": [{"node_id": "a\n"}, {"node_id": "b"}]}"#;
        assert_eq!(check(graph.as_bytes()), Ok(()));
        for (text, reason) in [
            ("", "EOF while parsing"),
            (" [1]", "it has no list `nodes`"),
            ("{}", "it has no list `nodes`"),
            ("7", "expected an object with a list `nodes`"),
            (r#"{"nodes": 7}"#, "expected a list"),
            (r#"{"nodes": [{}], "links": []}"#, "node 0 has no `node_id`"),
            (r#"{"nodes": [{"node_id": "a"}]}"#, "it has no list `links`"),
            (r#"{"nodes": [], "nodes": [], "links": []}"#, "it has 2 `nodes` lists; expected one"),
            (r#"{"nodes": [], "links": [{}]}"#, "link 0 has no `source`"),
            (r#"{"nodes": [], "links": []} x"#, "trailing characters"),
        ] {
            let message = check(text.as_bytes()).unwrap_err();
            assert!(message.contains(reason), "{text}: {message}");
        }
        let message = check(graph.replace("\"b\"}]", "\"c\"}]").as_bytes()).unwrap_err();
        assert_eq!(message, "link 0 refers to the node `b`, which does not exist");
        let message = check(graph.replace(": 1,", ": null,").as_bytes()).unwrap_err();
        assert_eq!(message, "link 0 has no finite `weight`");
    }
}
