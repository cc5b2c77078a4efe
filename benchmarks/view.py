"""`hieronnx view`: how long a page takes to make, how large it is, and how fast a real browser answers in it."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Section
from benchmarks.page import use_zoo

_BERT = "BERT-base, no weights there"
_SHAPES = {"deep, 5,000": ("deep", 5_000), "wide, 5,000": ("wide", 5_000), "flat, 5,000": ("flat", 5_000)}
_SHAPES["deep, 50,000"] = ("deep", 50_000)
_CLICKS = 10
_TEXT = (
    "`hieronnx view` on `BertModel(BertConfig())`, its file of weights taken away, and on generated "
    "files: one layer of 10 nodes after the other (deep), all side by side (wide), and all nodes in one "
    "call (flat). All times are processor time, which others that use the machine do not lengthen. The "
    "command is timed from its start to its end, imports included; making the page is `hieronnx.view` "
    "alone, and the peak memory that of its process. The page is opened from disk in headless Chromium, "
    f"until it can be used; then up to {_CLICKS} rows of the tree, {_CLICKS} boxes of the first picture "
    "and the button that unfolds repeats are clicked, each until the next frame is there: the time is "
    "that of the process that shows the page, all of its threads. The aims: under 3 s for BERT-base; at "
    "5,000 nodes under 1 s until it can be used, and under 100 ms a click; 50,000 nodes open."
)
_CLICK = """
const [element, done] = arguments;
element.dispatchEvent(new MouseEvent("click", {bubbles: true}));
requestAnimationFrame(() => setTimeout(done));
"""


def run(repeats: int) -> Section:
    """Make the page of every model, and use it."""
    with TemporaryDirectory(prefix="hieronnx-bench-") as folder:
        rows = [measure_page(name, Path(folder), repeats) for name in (_BERT, *_SHAPES)]
    header = ("model", "nodes", "command, s", "page made, s", "peak, MiB", "page, kB", "bytes a node")
    clicked = ("until it can be used, ms", "click, median, ms", "click, slowest, ms")
    return Section("View", _TEXT, (*header, *clicked), tuple(rows))


def measure_page(name: str, folder: Path, repeats: int) -> tuple[str, ...]:
    """Make a model and its page, use the page, and return a row of the table."""
    path, page = folder / "model.onnx", folder / "model.html"
    _run("benchmarks.view", "model", name, str(path))
    made = [json.loads(_run("benchmarks.view", "page", str(path), str(page))) for _ in range(repeats)]
    command = statistics.median(_time_command(path, page) for _ in range(repeats))
    nodes, ready, clicks = browse(page, repeats)
    size = page.stat().st_size
    return (
        name,
        f"{nodes:,}",
        f"{command:.2f}",
        f"{statistics.median(seconds for seconds, _ in made):.2f}",
        f"{statistics.median(peak for _, peak in made):.0f}",
        f"{size / 1000:.0f}",
        f"{size / nodes:.0f}",
        f"{ready:.0f}",
        f"{statistics.median(clicks):.0f}",
        f"{max(clicks):.0f}",
    )


def _run(*words: str) -> str:
    return subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True, text=True).stdout


def _time_command(path: Path, page: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run("hieronnx", "view", str(path), "-o", str(page))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def browse(page: Path, repeats: int) -> tuple[int, float, list[float]]:
    """Open a page several times and click in it; return its nodes, and the milliseconds: to open, of each click."""
    use_zoo()
    from support.browser import browsing

    with browsing() as browser:
        browser.driver.execute_cdp_cmd("Performance.enable", {})

        def read_clock() -> float:
            metrics = browser.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
            return 1000 * float(next(item["value"] for item in metrics if item["name"] == "ProcessTime"))

        def open_page() -> float:
            browser.driver.get("about:blank")
            before = read_clock()
            browser.open(page)
            return read_clock() - before

        def click(place: int) -> float:
            element = browser.driver.find_elements("css selector", selector)[place]
            before = read_clock()
            browser.driver.execute_async_script(_CLICK, element)
            return read_clock() - before

        ready = statistics.median(open_page() for _ in range(repeats))
        nodes = int(browser.texts("header .facts")[0].split(" ")[0].replace(",", ""))
        clicks = []
        for selector in (".tree .row", ".picture .box", ".bar .folds:not([hidden])"):
            open_page()
            for place in range(min(_CLICKS, len(browser.texts(selector)))):
                clicks.append(click(place))
                if selector == ".picture .box":
                    open_page()
        assert browser.messages() == []
        assert browser.requests() == []
    return nodes, ready, clicks


# -- in the child process -----------------------------------------------------------------------------------


def make_page(path: str, page: str) -> tuple[float, float]:
    """Make a page; return the seconds and the peak. What it imports is imported by making another one before."""
    import hieronnx
    from benchmarks.tools import make_hierarchy, make_model, write

    with TemporaryDirectory() as folder:
        model = make_model("deep", 10)
        hieronnx.view(write(Path(folder, "small.onnx"), model, make_hierarchy(model)))
    start = time.process_time()
    hieronnx.view(path, output=page)
    return time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make(name: str, path: Path) -> None:
    """Write a model with its hierarchy."""
    if name == _BERT:
        _export_bert(path)
        return
    from benchmarks.tools import make_hierarchy, make_model, write
    from hieronnx.hierarchy.records import ROOT

    shape, size = _SHAPES[name]
    model = make_model("deep" if shape == "flat" else shape, size)
    hierarchy = make_hierarchy(model)
    if shape == "flat":
        nodes = tuple(replace(node, scope=ROOT, origins=(ROOT,)) for node in hierarchy.nodes)
        hierarchy = replace(hierarchy, nodes=nodes)
    write(path, model, hierarchy)


def _export_bert(path: Path) -> None:
    import hieronnx
    from benchmarks.export import build_bert

    model, inputs = build_bert()
    hieronnx.export(model, (), path, inputs, exporter="dynamo")
    path.with_name(f"{path.name}.data").unlink()


if __name__ == "__main__":
    if sys.argv[1] == "page":
        print(json.dumps(make_page(*sys.argv[2:])))
    else:
        make(sys.argv[2], Path(sys.argv[3]))
