"""Opens pages in Chromium whose tokens and labels contain markup, and fails if any of it runs or becomes an element.

    python scripts/check_hostile_labels.py --program target/release/hooklens --model FOLDER

FOLDER is a model whose tokenizer knows every character, such as stories260k. Needs `chromium` and `chromedriver`, and
nothing from pip. The exit code is 0 if every check passes.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from check_attention_view import Browser

HOSTILE = "<img src=x onerror=\"window.ran=1\"></script><script>window.ran=1</script><b id=\"planted\">'=1+1"
PROMPT = ["--prompt", HOSTILE]
PAIR = ["--clean", f"{HOSTILE} a", "--corrupted", f"{HOSTILE} b", "--answer-token", "5", "--wrong-token", "7"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--program", type=pathlib.Path, default="target/release/hooklens")
parser.add_argument("--model", required=True)
parser.add_argument("--port", type=int, default=9517)
arguments = parser.parse_args()
program = arguments.program.resolve()


def run(folder, *options):
    subprocess.run([program, *options], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def pages(folder):
    """Writes a page of each kind; returns their names."""
    model = ["--model", arguments.model]
    (folder / "labels.json").write_text(json.dumps({str(latent): HOSTILE for latent in range(16)}))
    train = ["features", "train", *model, *PROMPT, "--at", "blocks.1.hook_resid_post", "--latents", "16"]
    run(folder, *train, "--k", "4", "--tokens", "4000", "--batch-size", "64", "--out", "sae")
    dictionary = ["--dictionary", "sae", "--labels", "labels.json"]
    made = {
        "attention": ["attention", *model, *PROMPT],
        "lens": ["lens", *model, *PROMPT],
        "attribute": ["attribute", *model, *PROMPT, "--answer-token", "5"],
        "patch": ["patch", *model, *PAIR],
        "heads": ["heads", *model],
        "graph": ["graph", *model, *PROMPT, "--answer-token", "5", "--neurons", "3"],
        "dashboard": ["features", "show", *model, *PROMPT, *dictionary],
    }
    for name, command in made.items():
        for ending in ("html",) if name in ("graph", "dashboard") else ("html", "svg"):
            run(folder, *command, "--out", f"{name}.{ending}")
            yield f"{name}.{ending}"


def holds(browser):
    """Whether no label has become a script or an element of the page, even after its widgets have been used."""
    browser.run(
        "[...document.querySelectorAll('button, [tabindex], summary, rect, td')].slice(0, 300).forEach("
        "one => one.dispatchEvent(new MouseEvent('mouseover', {bubbles: true})))"
    )
    time.sleep(0.2)
    return browser.run("return window.ran === undefined && document.querySelector('#planted, img[src=x]') === null")


failed = False
driver = subprocess.Popen(["chromedriver", f"--port={arguments.port}"], stdout=subprocess.DEVNULL)
try:
    time.sleep(2)
    with tempfile.TemporaryDirectory() as work:
        browser = Browser(arguments.port, f"{work}/profile")
        # The check itself must be able to fail.
        control = pathlib.Path(work, "control.html")
        control.write_text(f"<body>{HOSTILE}</body>")
        browser.open(control)
        assert not holds(browser), "markup does not run in this browser"
        for name in pages(pathlib.Path(work)):
            browser.open(f"{work}/{name}")
            safe = holds(browser)
            failed |= not safe
            print(f"{name}: {'ok' if safe else 'markup from a label became part of the page'}")
        browser.call("DELETE", "")
finally:
    driver.kill()
sys.exit(failed)
