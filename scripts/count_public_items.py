#!/usr/bin/env python3
"""Counts the public items of the crate `hooklens`: what a program can reach through its re-exports.

    scripts/count_public_items.py [--types]

Items are the types, traits, functions and constants that `src/` re-exports, their inherent public functions, and the
functions of the traits. Public fields of structs are counted separately. A module that is re-exported as a whole
(`hook`) counts with everything in it. `--types` also prints the number of functions and fields of each type, largest
first. The source is read as text, and must be formatted by rustfmt. Exits with an error if there are more items or
fields than `LIMITS` allows. The interface should shrink: lower the limits when it does, and raise them only if users
can then do something that they could not do before.
"""

import re
import sys
from collections import Counter
from pathlib import Path

# 1,161 since rows of a decoder's cache can be selected with the inputs that they are decoded from (`DecoderCache`).
LIMITS = {"items": 1161, "fields": 243}
ROOT = Path(__file__).resolve().parent.parent
CRATES = ["hooks", *(f"crates/{name}" for name in ["model", "loading", "data", "analysis", "plot", "features"])]
WHOLE = ["crates/model/src/hook.rs"]
GENERICS = r"(?:<[^{]*?>)?"
ITEM = re.compile(r"^pub (?:const |async )?(struct|enum|trait|type|fn|const) (\w+)", re.M)
IMPL = re.compile(rf"^impl{GENERICS} (?:\w+::)*(\w+){GENERICS} (?:where[^{{]*)?\{{\n(.*?)^\}}", re.M | re.S)
TRAIT = re.compile(r"^pub trait (\w+)[^{]*\{\n(.*?)^\}", re.M | re.S)
STRUCT = re.compile(r"^pub struct (\w+)[^;{]*\{\n(.*?)^\}", re.M | re.S)
FUNCTION = re.compile(r"^    pub (?:const |async |unsafe )*(?:fn|const) \w+", re.M)
# The macro that defines the builder methods of `TransformerConfig`.
SETTERS = re.compile(r"^setters! \{\n(.*?)^\}", re.M | re.S)
TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{\n.*?^\}", re.M | re.S)


def source(path):
    """The text of a file without comments and unit tests."""
    text = "\n".join(line for line in path.read_text().split("\n") if not line.strip().startswith("//"))
    return TESTS.sub("", text)


def exported():
    """The names that `src/` and the modules in `WHOLE` re-export."""
    files = [*(ROOT / "src").rglob("*.rs"), *(ROOT / path for path in WHOLE)]
    uses = (use for path in files for use in re.findall(r"pub use ([^;]*);", source(path)))
    return {name for use in uses for name in re.findall(r"\w+", use)}


def main():
    names = exported()
    counts, of_types = Counter(), Counter()
    for path in (path for crate in CRATES for path in (ROOT / crate / "src").rglob("*.rs") if path.name != "tests.rs"):
        whole = str(path.relative_to(ROOT)) in WHOLE
        public = lambda name: whole or name in names
        text = source(path)
        counts["types, traits, functions"] += len({name for _, name in ITEM.findall(text) if public(name)})
        for name, body in filter(lambda found: public(found[0]), IMPL.findall(text)):
            of_types[name] += len(FUNCTION.findall(body))
        for body in SETTERS.findall(text):
            of_types["TransformerConfig"] += body.count(";")
        for name, body in filter(lambda found: public(found[0]), TRAIT.findall(text)):
            counts["functions of traits"] += len(re.findall(r"^    fn \w+", body, re.M))
        for name, body in filter(lambda found: public(found[0]), STRUCT.findall(text)):
            counts["fields"] += len(re.findall(r"^    pub \w+:", body, re.M))
    counts["functions of types"] = of_types.total()
    counts["items"] = counts.total() - counts["fields"]
    for what, count in counts.items():
        print(f"{count:6} {what}")
    if "--types" in sys.argv[1:]:
        print(*(f"{count:6} {name}" for name, count in of_types.most_common()), sep="\n")
    over = [f"{counts[what]} public {what}, more than {most}" for what, most in LIMITS.items() if counts[what] > most]
    sys.exit("; ".join(over) or 0)


if __name__ == "__main__":
    main()
