//! The next argument in a Python docstring (Heimersheim & Janiak 2023).

use super::Template;

const ARGUMENTS: [&str; 32] = [
    "size", "file", "name", "path", "line", "value", "key", "data", "index", "count", "text", "user", "time", "date",
    "type", "state", "node", "order", "code", "group", "item", "model", "label", "start", "end", "shape", "color",
    "port", "host", "mode", "level", "target",
];

const NAMES: [&str; 8] = ["load", "update", "create", "process", "get", "build", "check", "run"];

/// The corrupted prompt has a different third argument.
pub(super) fn template() -> Template {
    let prompt = |third: &str| {
        format!(
            "def {{function}}(self, {{a}}, {{b}}, {third}, {{d}}):\n    \"\"\"{{summary}}\n\n    :param {{a}}: \
             {{about_a}}\n    :param {{b}}: {{about_b}}\n    :param"
        )
    };
    let about = ["the first one", "what to use", "see below", "must be set", "may be empty", "the old one"];
    Template::new(prompt("{c}"), prompt("{e}"), " {c}", " {e}")
        .words(["a", "b", "c", "d", "e"], ARGUMENTS)
        .phrases("function", NAMES)
        .phrases("summary", ["Does the work.", "Main method.", "Helper method.", "For internal use."])
        .phrases("about_a", about)
        .phrases("about_b", about)
}
