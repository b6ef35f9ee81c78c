//! Types that check the shape of JSON without storing any of it, for files that are checked before they are parsed.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::json_memory::{FIELD, LIST, OBJECT, VALUE};

/// A list of `T`. Deserializing it checks each entry.
#[derive(Debug, Clone, Copy)]
pub struct Each<T>(PhantomData<T>);

/// An object with at most `MOST` fields, whose names are `K` and whose values are `V`. Deserializing it checks each
/// field.
#[derive(Debug, Clone, Copy)]
pub struct EachField<K, V, const MOST: usize>(PhantomData<(K, V)>);

/// A value that takes at most `MOST` bytes of memory. Deserializing it counts the bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct UpTo<const MOST: usize>;

impl<T> Default for Each<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<K, V, const MOST: usize> Default for EachField<K, V, MOST> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Each<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Self::default())
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Each<T> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<T>()?.is_some() {}
        Ok(self)
    }
}

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>, const MOST: usize> Deserialize<'de> for EachField<K, V, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Self::default())
    }
}

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>, const MOST: usize> Visitor<'de> for EachField<K, V, MOST> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        let mut count = 0;
        while fields.next_entry::<K, V>()?.is_some() {
            count += 1;
            if count > MOST {
                return Err(A::Error::custom(format!("an object has more than {MOST} fields")));
            }
        }
        Ok(self)
    }
}

impl<'de, const MOST: usize> Deserialize<'de> for UpTo<MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut size = 0;
        Counter { size: &mut size, most: MOST }.deserialize(from)?;
        Ok(Self)
    }
}

/// Counts the memory of a value and everything in it.
struct Counter<'s> {
    size: &'s mut usize,
    most: usize,
}

impl Counter<'_> {
    fn count<E: Error>(&mut self, size: usize) -> Result<(), E> {
        *self.size += size;
        if *self.size > self.most {
            return Err(E::custom(format!("a value takes more than {} bytes of memory", self.most)));
        }
        Ok(())
    }

    /// A counter for a value inside this counter's value, with the same limit.
    fn within(&mut self) -> Counter<'_> {
        Counter { size: self.size, most: self.most }
    }
}

impl<'de> DeserializeSeed<'de> for Counter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        self.count(VALUE)
    }

    fn visit_bool<E: Error>(mut self, _: bool) -> Result<(), E> {
        self.count(VALUE)
    }

    fn visit_i64<E: Error>(mut self, _: i64) -> Result<(), E> {
        self.count(VALUE)
    }

    fn visit_u64<E: Error>(mut self, _: u64) -> Result<(), E> {
        self.count(VALUE)
    }

    fn visit_f64<E: Error>(mut self, _: f64) -> Result<(), E> {
        self.count(VALUE)
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        self.count(VALUE + text.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        self.count(LIST)?;
        while list.next_element_seed(self.within())?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<(), A::Error> {
        self.count(OBJECT)?;
        while fields.next_key_seed(self.within())?.is_some() {
            self.count(FIELD)?;
            fields.next_value_seed(self.within())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_checked() {
        let read = |text: &str| serde_json::from_str::<EachField<u8, Each<bool>, 2>>(text);
        read(r#"{"1": [true, false], "2": []}"#).unwrap();
        for (text, reason) in [
            (r#"{"256": []}"#, "expected u8"),
            (r#"{"1": [true, 0]}"#, "expected a boolean"),
            (r#"{"1": {}}"#, "expected a list"),
            ("[]", "expected an object"),
            (r#"{"1": [], "2": [], "3": []}"#, "an object has more than 2 fields"),
        ] {
            let message = read(text).unwrap_err().to_string();
            assert!(message.contains(reason), "{text}: {message}");
        }
    }

    #[test]
    fn memory_of_values_is_counted() {
        let read = |text: &str| serde_json::from_str::<UpTo<3000>>(text);
        read(r#"{"a": [1, -2, 0.5, null, true, "text"], "b": {}}"#).unwrap();
        for text in [format!("[{}0]", "0, ".repeat(60)), format!("\"{}\"", "x".repeat(3000)), "[".repeat(20)] {
            let message = read(&text).unwrap_err().to_string();
            assert!(message.starts_with("a value takes more than 3000 bytes of memory"), "{text}: {message}");
        }
    }
}
