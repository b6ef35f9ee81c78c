"""Opens pages of attribution graphs in Chromium, operates them with mouse and keyboard, and measures response times.

    cargo run --release -- graph --model embedded:ioi --prompt 'When Mary and John ...' --out graph.html
    python scripts/check_graph_page.py graph.html --program target/release/hooklens --shots shots

With --program, a page with 1,000 nodes and 20,000 links is also created. On this page, responding to a key, a slider or
the mouse may take at most --most milliseconds of the main thread's CPU time on average. The time from each event to the
frame that draws the response is also printed. Needs `chromium` and `chromedriver`, and nothing from pip. The exit code
is 0 if every check passes.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from check_attention_view import KEYS, Browser

KEYS |= {"enter": "\ue007", "escape": "\ue00c", "p": "p", "g": "g", "d": "d", "i": "i", "o": "o", "z": "z", "/": "/", "?": "?"}

ANSWERS = 30
# Each response is timed from its event to the end of the frame that draws it.
MEASURE = """
const done = arguments[arguments.length - 1], [what, count] = arguments;
const grid = document.getElementById("grid"), times = [];
const drawn = () => new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
const key = (name) => grid.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
const slide = (id, share) => {
  const input = document.getElementById(id);
  input.value = Number(input.min) + share * (Number(input.max) - Number(input.min));
  input.dispatchEvent(new Event("input", { bubbles: true }));
};
const move = (x, y) => {
  const { left, top, width, height } = grid.getBoundingClientRect();
  const at = { clientX: left + x * width, clientY: top + y * height, bubbles: true, pointerType: "mouse" };
  grid.dispatchEvent(new PointerEvent("pointermove", at));
};
const acts = {
  select: (n) => { key(["ArrowRight", "ArrowRight", "ArrowUp", "ArrowDown"][n % 4]); key("Enter"); },
  influence: (n) => slide("influence", 0.3 + 0.7 * ((n * 7) % 10) / 10),
  share: (n) => slide("share", ((n * 3) % 10) / 10),
  mouse: (n) => move(0.1 + 0.8 * ((n * 37) % 100) / 100, 0.1 + 0.8 * ((n * 61) % 100) / 100),
  pin: () => { key("ArrowRight"); key("p"); },
};
(async () => {
  grid.focus();
  await drawn();
  for (let n = 0; n < count; n += 1) {
    const begun = performance.now();
    acts[what](n);
    await drawn();
    times.push(performance.now() - begun);
  }
  if (what === "influence" || what === "share") slide(what, what === "share" ? 0 : 1);
  done(times);
})();
"""


def large(nodes=1000, links=20_000, layers=24, positions=30):
    """A random graph in Neuronpedia's schema."""
    draw = random.Random(7)
    tokens = [f" token{n}" for n in range(positions)]
    made = [
        {"node_id": f"E_{n}_{n}", "feature": n, "layer": "E", "ctx_idx": n, "feature_type": "embedding", "clerp": tokens[n],
         "jsNodeId": f"E_{n}-{n}", "influence": 0.5}
        for n in range(positions)
    ]
    for n in range(nodes - positions - 1):
        layer, position = draw.randrange(layers), draw.randrange(positions)
        made.append({
            "node_id": f"{layer}_{n}_{position}", "feature": n, "layer": str(layer), "ctx_idx": position,
            "feature_type": "cross layer transcoder", "clerp": f"feature {n}", "jsNodeId": f"{layer}_{n}-0",
            "influence": draw.random(), "activation": 10 * draw.random(),
        })
    made.append({
        "node_id": f"{layers + 1}_5_{positions - 1}", "feature": 5, "layer": str(layers + 1), "ctx_idx": positions - 1,
        "feature_type": "logit", "clerp": 'Output "end" (p=0.9)', "token_prob": 0.9, "is_target_logit": True, "jsNodeId": "L_5-0",
    })
    height = [-1 if node["layer"] == "E" else int(node["layer"]) for node in made]
    edges = {}
    while len(edges) < links:
        one, other = draw.randrange(nodes), draw.randrange(nodes)
        if height[one] < height[other] and made[one]["ctx_idx"] <= made[other]["ctx_idx"]:
            edges[one, other] = draw.gauss(0, 1)
    return {
        "metadata": {"slug": "large", "scan": "random", "prompt_tokens": tokens, "prompt": "".join(tokens)},
        "qParams": {"pinnedIds": [node["node_id"] for node in made[-15:]], "supernodes": []},
        "nodes": made,
        "links": [{"source": made[a]["node_id"], "target": made[b]["node_id"], "weight": w} for (a, b), w in edges.items()],
    }


def counts(browser):
    return browser.run("return document.getElementById('counts').textContent")


def check(browser, page, shots, expect):
    name = pathlib.Path(page).stem
    browser.open(page, width=1400, height=1000)
    browser.picture(shots / f"{name}.png")
    expect("no errors", browser.errors(), [])
    expect("nothing fetched", browser.run("return performance.getEntriesByType('resource').length"), 0)
    wide = browser.run("return document.documentElement.scrollWidth <= innerWidth")
    expect("fits its width", wide, True)
    theme = "return document.documentElement.dataset.theme"
    browser.run("document.getElementById('grid').focus()")
    before = browser.run(theme)
    browser.press("d")
    expect("d switches between dark and light", browser.run(theme) != before, True)
    browser.picture(shots / f"{name}-other.png")
    browser.press("d")
    pinned = "return document.querySelectorAll('#diagram .item').length"
    first = browser.run(pinned)
    browser.press("right", "right", "enter")
    expect("Enter selects", browser.run("return document.querySelector('#details h2').textContent") != "Graph", True)
    browser.picture(shots / f"{name}-selected.png")
    browser.press("p")
    expect("p pins, or unpins", browser.run(pinned) != first, True)
    browser.press("z")
    expect("z undoes", browser.run(pinned), first)
    whole = counts(browser)
    browser.run("const i = document.getElementById('influence'); i.value = 0.4; i.dispatchEvent(new Event('input', {bubbles: true}))")
    expect("the slider hides nodes", counts(browser) != whole, True)
    browser.run("const i = document.getElementById('influence'); i.value = 1; i.dispatchEvent(new Event('input', {bubbles: true}))")
    expect("and shows them again", counts(browser), whole)
    browser.press("?")
    expect("? lists the keys", browser.run("return document.getElementById('help').open"), True)
    browser.press("escape")
    expect("still no errors", browser.errors(), [])
    browser.open(page, width=560, height=1000)
    browser.picture(shots / f"{name}-narrow.png")
    expect("fits its width when narrow", browser.run("return document.documentElement.scrollWidth <= innerWidth"), True)


def busy(browser):
    """CPU time of the page's thread, in seconds."""
    metrics = browser.call("POST", "/goog/cdp/execute", {"cmd": "Performance.getMetrics", "params": {}})["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


def measure(browser, page, most, expect):
    browser.call("POST", "/timeouts", {"script": 300_000})
    browser.open(page, width=1400, height=1000)
    browser.call("POST", "/goog/cdp/execute", {"cmd": "Performance.enable", "params": {"timeDomain": "threadTicks"}})
    load = browser.run("const t = performance.getEntriesByType('navigation')[0]; return t.domContentLoadedEventEnd - t.responseEnd")
    print(f"     drawn {load:.0f} ms after loading: {counts(browser)}")
    for what in ["select", "mouse", "influence", "share", "pin"]:
        before = busy(browser)
        times = sorted(browser.call("POST", "/execute/async", {"script": MEASURE, "args": [what, ANSWERS]}))
        own = 1000 * (busy(browser) - before) / ANSWERS
        median, late = statistics.median(times), times[int(0.95 * len(times))]
        print(f"     {what}: {own:.1f} ms of work; drawn after {median:.1f} ms, 95% within {late:.1f} ms")
        expect(f"{what} takes at most {most} ms of work", own <= most, True)
    expect("no errors", browser.errors(), [])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("page", nargs="*")
    arguments.add_argument("--program", type=pathlib.Path, help="the hooklens program, to make the large page")
    arguments.add_argument("--shots", type=pathlib.Path, default=pathlib.Path("shots"))
    arguments.add_argument("--most", type=float, default=33)
    arguments.add_argument("--port", type=int, default=9518)
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
                check(browser, page, given.shots, expect)
            if given.program:
                file = pathlib.Path(folder) / "large.json"
                file.write_text(json.dumps(large()))
                subprocess.run([given.program, "graph", "view", file], check=True, stdout=subprocess.DEVNULL)
                page = file.with_suffix(".html")
                print("1,000 nodes, 20,000 links")
                check(browser, page, given.shots, expect)
                measure(browser, page, given.most, expect)
            browser.call("DELETE", "")
    finally:
        driver.terminate()
        driver.wait()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
