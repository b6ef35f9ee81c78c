"""Opens an attention view in Chromium, operates it with mouse and keyboard, and takes screenshots.

    cargo run --release --example attention_view
    python scripts/check_attention_view.py attention.html --shots shots

Needs `chromium` and `chromedriver` (Debian: `apt-get install chromium chromium-driver`), and nothing from pip. The
exit code is 0 if every check passes.
"""

import argparse
import base64
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

CHROMIUM = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
]
KEYS = {"right": "\ue014", "left": "\ue012", "down": "\ue015", "up": "\ue013", "home": "\ue011", "end": "\ue010", "tab": "\ue004"}
HOST = "document.querySelectorAll('div.hooklens-attention')[arguments[0]]"


class Browser:
    """A minimal WebDriver client."""

    def __init__(self, port, profile):
        self.base = f"http://127.0.0.1:{port}"
        options = {"args": [*CHROMIUM, f"--user-data-dir={profile}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{made['sessionId']}"

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{path}: {error.read().decode()[:500]}") from error

    def open(self, path, width=1100, height=860):
        self.call("POST", "/window/rect", {"width": width, "height": height})
        self.call("POST", "/url", {"url": pathlib.Path(path).resolve().as_uri()})
        time.sleep(0.3)

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def point(self, element, x=0, y=0, click=False):
        moves = [{"type": "pointerMove", "duration": 0, "origin": element, "x": x, "y": y}]
        if click:
            moves += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": moves}
        self.call("POST", "/actions", {"actions": [mouse]})
        time.sleep(0.1)

    def press(self, *keys):
        strokes = [{"type": kind, "value": KEYS[key]} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": strokes}]})
        time.sleep(0.1)

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def errors(self):
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]


class View:
    """One attention view on a page."""

    def __init__(self, browser, number=0):
        self.browser, self.number = browser, number

    def part(self, script):
        return self.browser.run(f"const root = {HOST}.shadowRoot; return {script}", self.number)

    def element(self, css, number=0):
        return self.part(f"root.querySelectorAll({json.dumps(css)})[{number}]")

    def says(self):
        return self.part("root.querySelector('.says').textContent")

    def head(self):
        return self.part("root.querySelector('.head[aria-pressed=true]').textContent")

    def token(self):
        return self.part("[...root.querySelectorAll('.token')].findIndex((t) => t.classList.contains('chosen'))")

    def colors(self):
        return self.part("[...root.querySelectorAll('.token')].map((t) => t.style.background)")

    def focus(self, css, number=0):
        self.part(f"root.querySelectorAll({json.dumps(css)})[{number}].focus()")
        time.sleep(0.1)


def twice(page):
    """A dark page that contains the view twice, with page styles that must not affect the view."""
    text = pathlib.Path(page).read_text()
    fragment = text.split("<body", 1)[1].split(">", 1)[1].rsplit("</body>", 1)[0]
    return (
        "<!doctype html><meta charset=utf-8><style>body { background: #111; color: #eee; font: 20px serif } "
        "button { background: red; padding: 30px } div { margin: 3px } canvas { width: 10px }</style>"
        f"<h1>one</h1>{fragment}<h1>two</h1>{fragment}"
    )


def globals_of(browser):
    """Names of a page's global variables, except for those that the driver adds."""
    names = browser.run("return Object.getOwnPropertyNames(window)")
    return {name for name in names if not name.startswith("cdc_") and name != "ret_nodes"}


def check_one(browser, page, shots, expect):
    before = globals_of(browser)
    browser.open(page)
    view = View(browser)
    name = pathlib.Path(page).stem
    browser.picture(shots / f"{name}.png")
    expect("no errors", browser.errors(), [])
    expect("nothing fetched", browser.run("return performance.getEntriesByType('resource').length"), 0)
    expect("no new globals", sorted(globals_of(browser) - before), [])
    tall = "root.querySelector('.frame').scrollHeight <= root.querySelector('.frame').clientHeight"
    expect("fits its height", view.part(tall), True)
    expect("no injected elements", view.part("root.querySelectorAll('img, script, iframe').length"), 0)
    heads, tokens = view.part("[root.querySelectorAll('.head').length, root.querySelectorAll('.token').length]")

    view.focus(".head")
    first = (view.head(), view.says())
    browser.press("right" if heads > 1 else "home")
    expect("an arrow chooses another head", (view.head(), view.says()) != first, heads > 1)
    browser.press("end")
    expect("End chooses the last head", view.head(), view.part("[...root.querySelectorAll('.head')].pop().textContent"))
    browser.press("tab")
    expect("Tab goes to the tokens", view.part("root.activeElement.className").split()[0], "token")
    browser.press("home")
    expect("Home chooses the first token", view.token(), 0)
    browser.press("right", "right")
    expect("arrows choose tokens", view.token(), min(2, tokens - 1))
    browser.press("end")
    expect("End chooses the last token", view.token(), tokens - 1)
    browser.picture(shots / f"{name}-keys.png")

    chosen = (view.says(), view.colors())
    if tokens > 1:
        browser.point(view.element(".token", 1))
        expect("pointing at a token shows it", view.token(), 1)
        expect("and colors the text", view.colors() != chosen[1], True)
    box = view.part("(({width}) => width)(root.querySelector('.large canvas').getBoundingClientRect())")
    browser.point(view.element(".large canvas"), round(box / 2) - 12, -round(box / 2) + 12)
    expect("pointing at a cell shows it", " attends to " in view.says() and "0.00" in view.says(), True)
    browser.point(view.element(".large canvas"), 0, 0)
    browser.picture(shots / f"{name}-cell.png")
    browser.point(view.element(".says"))
    expect("moving away shows the chosen token again", view.says(), chosen[0])
    browser.point(view.element(".reverse"), click=True)
    expect("a button shows the reverse direction", "is attended to by" in view.says(), True)
    browser.point(view.element(".own"), click=True)
    view.focus(".token")
    browser.picture(shots / f"{name}-reverse.png")
    expect("still no errors", browser.errors(), [])
    browser.open(page, width=560)
    browser.picture(shots / f"{name}-narrow.png")
    expect("fits its height when narrow", view.part(tall), True)


def check_twice(browser, page, shots, folder, expect):
    path = pathlib.Path(folder) / "twice.html"
    path.write_text(twice(page))
    browser.open(path, height=1600)
    one, two = View(browser, 0), View(browser, 1)
    expect("no errors", browser.errors(), [])
    before = two.says()
    one.focus(".token")
    expect("the first view moves", one.token(), 0)
    expect("the second view stays", two.says(), before)
    browser.picture(shots / f"{pathlib.Path(page).stem}-twice.png")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("page", nargs="+")
    arguments.add_argument("--shots", type=pathlib.Path, default=pathlib.Path("shots"))
    arguments.add_argument("--port", type=int, default=9517)
    given = arguments.parse_args()
    given.shots.mkdir(parents=True, exist_ok=True)
    failed = []

    def expect(what, found, wanted):
        good = found == wanted
        print(f"{'ok  ' if good else 'FAIL'} {what}" + ("" if good else f": got {found!r}, expected {wanted!r}"))
        failed.extend([] if good else [what])

    driver = subprocess.Popen(["chromedriver", f"--port={given.port}"], stdout=subprocess.DEVNULL)
    try:
        with tempfile.TemporaryDirectory() as folder:
            time.sleep(1.5)
            browser = Browser(given.port, f"{folder}/profile")
            for page in given.page:
                print(page)
                check_one(browser, page, given.shots, expect)
                check_twice(browser, page, given.shots, folder, expect)
            browser.call("DELETE", "")
    finally:
        driver.terminate()
        driver.wait()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
