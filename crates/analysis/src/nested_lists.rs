//! Reads nested lists of numbers into one list. Storing them as JSON values would take nine times as much memory.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

/// Numbers in nested lists, with null for numbers that are not finite.
#[derive(Debug, Default)]
pub(crate) struct NestedLists {
    /// All numbers, in order.
    pub(crate) numbers: Vec<f64>,
    /// Length of the lists at each depth.
    lengths: Vec<usize>,
    /// Whether all lists at a depth have the same length, and all numbers the same depth.
    is_regular: bool,
}

impl NestedLists {
    /// Whether the lists are an array of this shape.
    pub(crate) fn fit(&self, shape: &[usize]) -> bool {
        // Empty lists do not determine the lengths of inner axes.
        let known = shape.iter().position(|len| *len == 0).map_or(shape.len(), |empty| empty + 1);
        self.is_regular && self.lengths == shape[..known] && self.numbers.len() == shape.iter().product::<usize>()
    }

    fn add(&mut self, number: f64, depth: usize) {
        self.is_regular &= self.lengths.len() == depth;
        self.numbers.push(number);
    }
}

impl<'de> Deserialize<'de> for NestedLists {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut lists = Self { is_regular: true, ..Self::default() };
        AtDepth { lists: &mut lists, depth: 0 }.deserialize(from)?;
        Ok(lists)
    }
}

/// Visitor of a list or a number at this depth.
struct AtDepth<'l> {
    lists: &'l mut NestedLists,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for AtDepth<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AtDepth<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a list of numbers")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.lists.add(f64::NAN, self.depth);
        Ok(())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.lists.add(number, self.depth);
        Ok(())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { lists, depth } = self;
        let is_first = lists.lengths.len() == depth;
        if is_first {
            lists.is_regular &= lists.numbers.is_empty();
            lists.lengths.push(0);
        }
        let mut len = 0;
        while list.next_element_seed(AtDepth { lists, depth: depth + 1 })?.is_some() {
            len += 1;
        }
        if is_first {
            lists.lengths[depth] = len;
        }
        lists.is_regular &= lists.lengths[depth] == len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_flattened() {
        let read = |text: &str| serde_json::from_str::<NestedLists>(text).unwrap();
        let lists = read("[[1, -2, 0.5], [4, 5, null]]");
        assert!(lists.fit(&[2, 3]) && lists.numbers[..5] == [1.0, -2.0, 0.5, 4.0, 5.0] && lists.numbers[5].is_nan());
        assert!(![&[3, 2][..], &[2], &[6], &[2, 3, 1], &[]].iter().any(|shape| lists.fit(shape)));
        assert!(read("7").fit(&[]) && read("[]").fit(&[0]) && read("[]").fit(&[0, 5]) && read("[[], []]").fit(&[2, 0]));
        assert!(!read("[]").fit(&[5, 0]) && !read("[[], []]").fit(&[2, 1]) && !read("[[], []]").fit(&[0, 2]));
        for (text, shape) in
            [("[[1], 2]", [2, 1]), ("[1, [2]]", [2, 1]), ("[[1, 2], [3]]", [2, 2]), ("[[[1]], 2]", [2, 1])]
        {
            assert!(!read(text).fit(&shape) && !read(text).fit(&[2]), "{text}");
        }
        for text in ["\"a\"", "[[1], {}]", "[true]"] {
            assert!(serde_json::from_str::<NestedLists>(text).is_err(), "{text}");
        }
    }
}
