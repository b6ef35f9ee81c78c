//! An SVG parser like a browser's: well-formed or an error.

use std::collections::BTreeMap;

/// An element with its attributes, text and child elements.
#[derive(Debug, Default)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) text: String,
    pub(crate) children: Vec<Element>,
}

impl Element {
    /// The root element of a document.
    #[track_caller]
    pub(crate) fn parsed(document: &str) -> Element {
        let mut rest = document.trim_start();
        if let Some(prolog) = rest.strip_prefix("<?xml") {
            rest = prolog.split_once("?>").expect("a prolog that ends").1.trim_start();
        }
        let root = Element::read(&mut rest);
        assert!(rest.trim().is_empty(), "{rest:?} behind the document");
        root
    }

    fn read(rest: &mut &str) -> Element {
        let inside = rest.strip_prefix('<').unwrap_or_else(|| panic!("no element at {:.40}", rest));
        let (tag, behind) = split_tag(inside);
        *rest = behind;
        let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()), "{name:?} is no name");
        let mut element = Element { name: name.into(), attributes: pairs(attributes), ..Element::default() };
        if empty {
            return element;
        }
        loop {
            let (text, behind) = rest.split_at(rest.find('<').unwrap_or_else(|| panic!("`{name}` does not end")));
            element.text.push_str(&unescaped(text));
            *rest = behind;
            if let Some(end) = rest.strip_prefix("</") {
                let (closing, behind) = end.split_once('>').expect("a closing tag that ends");
                assert_eq!(closing.trim_end(), name, "elements end in the order they began");
                *rest = behind;
                element.text = element.text.trim().to_string();
                return element;
            }
            element.children.push(Element::read(rest));
        }
    }

    /// A numeric attribute.
    #[track_caller]
    pub(crate) fn number(&self, attribute: &str) -> f64 {
        self.attributes[attribute].parse().unwrap_or_else(|_| panic!("`{attribute}` of {self:?} is no number"))
    }

    /// All elements with a name.
    pub(crate) fn all<'e>(&'e self, name: &'e str) -> impl Iterator<Item = &'e Element> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// Contents of all text elements.
    pub(crate) fn texts(&self) -> Vec<&str> {
        self.all("text").map(|text| text.text.as_str()).collect()
    }

    /// The positions in a `points` attribute.
    pub(crate) fn points(&self) -> Vec<(f64, f64)> {
        let numbers = |pair: &str| {
            let (x, y) = pair.split_once(',').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        };
        self.attributes["points"].split_whitespace().map(numbers).collect()
    }
}

/// The inside of a tag, and the text after it. A `>` within quotes does not end it.
fn split_tag(text: &str) -> (&str, &str) {
    let mut quoted = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            '>' if !quoted => return (&text[..at], &text[at + 1..]),
            '<' => panic!("`<` within a tag: {:.60}", text),
            _ => {}
        }
    }
    panic!("a tag without an end: {text:.60}");
}

fn pairs(mut text: &str) -> BTreeMap<String, String> {
    let mut pairs = BTreeMap::new();
    loop {
        text = text.trim_start();
        if text.is_empty() {
            return pairs;
        }
        let (name, rest) = text.split_once("=\"").unwrap_or_else(|| panic!("no attribute in {text:?}"));
        let (value, rest) = rest.split_once('"').expect("a value that ends");
        assert!(pairs.insert(name.to_string(), unescaped(value)).is_none(), "`{name}` comes twice");
        text = rest;
    }
}

/// Unescapes a text. Fails on characters that XML does not allow.
fn unescaped(text: &str) -> String {
    let allowed =
        |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    assert!(text.chars().all(allowed), "a letter XML has none of: {text:?}");
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, entity)) = rest.split_once('&') {
        let (name, behind) = entity.split_once(';').unwrap_or_else(|| panic!("`&` alone in {text:?}"));
        plain.push_str(before);
        plain.push(match name {
            "lt" => '<',
            "gt" => '>',
            "amp" => '&',
            "quot" => '"',
            "apos" | "#39" => '\'',
            other => panic!("the entity `{other}`"),
        });
        rest = behind;
    }
    plain.push_str(rest);
    plain
}
