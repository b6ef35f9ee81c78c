"""Compares the values of every prompt in two folders of packed files. The folders may divide prompts into files
differently.

    python tests/compare_dumps.py FOLDER OTHER [PROMPTS]
"""

import json
import pathlib
import struct
import sys


def rows(folder):
    """Tokens and values of every prompt, by the prompt's number."""
    found = {}
    folder = pathlib.Path(folder)
    for entry in json.loads((folder / "manifest.json").read_text())["shards"]:
        data = (folder / entry["file"]).read_bytes()
        start = 8 + struct.unpack_from("<Q", data)[0]
        header = json.loads(data[8:start])

        def tensor(name):
            begin, end = header[name]["data_offsets"]
            return data[start + begin : start + end]

        def integers(name):
            return struct.unpack(f"<{len(tensor(name)) // 8}q", tensor(name))

        offsets, tokens = integers("row_offsets"), integers("tokens")
        # Hook points with one entry per token.
        others = {"tokens", "row_offsets", "prompt_numbers", "__metadata__"} | {name for name in header if f"{name}.shapes" in header}
        points = [name for name in header if name not in others and header[name]["shape"][0] == len(tokens)]
        values = {name: tensor(name) for name in points}
        for stored, number in enumerate(integers("prompt_numbers")):
            first, last = offsets[stored], offsets[stored + 1]
            own = {}
            for name, value in values.items():
                width = len(value) // len(tokens)
                own[name] = value[first * width : last * width]
            assert entry["first_row"] + number not in found, f"prompt {entry['first_row'] + number} occurs twice"
            found[entry["first_row"] + number] = (tokens[first:last], own)
    return found


def main():
    whole, other = rows(sys.argv[1]), rows(sys.argv[2])
    assert list(sorted(whole)) == list(range(len(whole))), "prompt numbers are missing"
    assert len(sys.argv) < 4 or len(whole) == int(sys.argv[3]), f"there are {len(whole)} prompts, not {sys.argv[3]}"
    differ = [number for number in {**whole, **other} if whole.get(number) != other.get(number)]
    assert not differ, f"{len(differ)} of {len(whole)} prompts differ, the first is {min(differ)}"
    print(f"{len(whole)} prompts have the same values")


if __name__ == "__main__":
    main()
