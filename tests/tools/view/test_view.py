"""What `view` writes, without a browser."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import struct
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest

import hieronnx
from hieronnx.files.shipped import read_shipped
from hieronnx.tools.view.statistics import measure
from support.annotated import annotated
from support.cli import run
from support.exports import exported

SOURCES = Path(__file__).parents[3] / "frontend" / "src"
NET = "net (float[2] x) => (float[2] y) { h = Relu(x)  y = Tanh(h) }"


def data_of(html: str | bytes) -> dict[str, Any]:
    assert isinstance(html, str)
    found = re.search(r'id="data">([^<]*)<', html)
    assert found is not None
    return dict(json.loads(gzip.decompress(b64decode(found[1]))))


@pytest.mark.parametrize("name", ["view.js", "view.css"])
def test_what_is_shipped_was_built_of_the_sources_as_they_are(name: str) -> None:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    assert digest.hexdigest() in read_shipped(name), "run 'npm run build' in frontend/"


def test_the_page_without_its_data_is_small_and_names_nothing_outside() -> None:
    html = str(hieronnx.view(annotated(NET, ["a", "b"])).content)
    assert len(html) < 500_000
    without_data = re.sub(r'id="data">[^<]*<', "", html)
    addresses = set(re.findall(r"\w+://[^\"'`\s)]*", without_data))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_policy_lets_one_script_and_one_style_run() -> None:
    html = str(hieronnx.view(annotated(NET, ["a", "b"])).content)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "unsafe" not in policy[1]
    for name in ("view.js", "view.css"):
        assert b64encode(hashlib.sha256(read_shipped(name).encode()).digest()).decode() in policy[1]


def test_names_are_in_the_compressed_data_alone() -> None:
    model = annotated(NET, ["secret_module", "b"])
    model.graph.node[0].name = "secret_node"
    html = str(hieronnx.view(model).content)
    assert "secret" not in html
    data = data_of(html)
    assert "secret_module" in [call.get("path") for call in data["calls"]]
    assert "secret_node" in [node["n"] for node in data["nodes"]]


def test_every_node_and_call_of_the_file_is_in_the_page() -> None:
    result = exported("bert", "torchscript").result
    data = data_of(hieronnx.view(result.path).content)
    assert [call.get("path", "") for call in data["calls"]] == [str(call.id) for call in result.hierarchy.calls]
    drawn = [element[1] for scenes in data["scenes"] for element in scenes[-1]["e"] if element[0] == 1]
    hidden = [number for number, node in enumerate(data["nodes"]) if "l" in node]
    assert sorted(drawn + hidden) == list(range(len(result.hierarchy.nodes)))  # each in one picture


def test_times_and_errors_are_those_of_the_calls(tmp_path: Path) -> None:
    model = annotated(NET, ["a", "b"])
    times = {"total_us": 3.0, "calls": [{"module": "a", "call": 0, "own_us": 1.0, "total_us": 2.0}]}
    deviation = {"relative": 0.5}
    errors = {
        "calls": [{"module": "b", "call": 0, "introduced": deviation, "accumulated": deviation, "verdict": "wrong"}]
    }
    (tmp_path / "p.json").write_text(json.dumps(times))
    data = data_of(hieronnx.view(model, profile=tmp_path / "p.json", verify=errors).content)
    assert data["measured"] == {"times": [None, [1.0, 2.0], None], "errors": [None, None, [0.5, 0.5, "wrong"]]}


def test_a_profile_of_another_model_is_refused() -> None:
    other = {"total_us": 3.0, "calls": [{"module": "z", "call": 0, "own_us": 1.0, "total_us": 2.0}]}
    with pytest.raises(hieronnx.InputError, match="another model"):
        hieronnx.view(annotated(NET, ["a", "b"]), profile=other)
    with pytest.raises(hieronnx.InputError, match="hieronnx verify"):
        hieronnx.view(annotated(NET, ["a", "b"]), verify=other)


def test_the_command_writes_the_page_beside_the_model(tmp_path: Path) -> None:
    onnx.save(annotated(NET, ["a", "b"]), tmp_path / "net.onnx")
    done = run("view", tmp_path / "net.onnx")
    assert done.exit_code == 0, done.output
    assert "net.html: 3 calls, 2 nodes" in done.output
    assert data_of((tmp_path / "net.html").read_text())["file"] == "net.onnx"
    done = run("view", tmp_path / "net.onnx", "-o", tmp_path / "b.html", "--json")
    assert json.loads(done.stdout)["files"][0]["path"] == str(tmp_path / "b.html")


def test_a_model_without_a_hierarchy_is_refused_with_what_to_do(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {NET}')
    with pytest.raises(hieronnx.HieronnxError, match=r"no hierarchy.*annotate"):
        hieronnx.view(model, output=tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_results_show_themselves(tmp_path: Path) -> None:
    page = exported("bert", "torchscript").result.view(tmp_path / "bert.html")
    assert page.path == tmp_path / "bert.html"
    assert data_of(page.content)["title"] == "BertModel"
    part = hieronnx.extract(annotated(NET, ["a", "b"]), "a")
    assert [node["n"] for node in data_of(part.view().content)["nodes"]] == [part.nodes[0].name]
    with pytest.raises(hieronnx.InputError, match="not written"):
        hieronnx.carry(annotated(NET, ["a", "b"]), annotated(NET, ["a", "b"])).view()


# -- pictures for documents ---------------------------------------------------------------------------------------


def test_a_picture_is_valid_xml_with_the_words_of_the_call(tmp_path: Path) -> None:
    path = exported("bert", "torchscript").result.path
    result = hieronnx.view(path, svg="encoder.layer.1.attention", output=tmp_path / "attention.svg")
    tree = ElementTree.parse(tmp_path / "attention.svg").getroot()
    texts = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"BertSelfAttention", "BertSelfOutput", "hidden_states"} <= set(texts)
    assert result.form == "svg"
    by_tag = "/BertModel/BertEncoder/BertLayer.1/BertAttention"
    assert hieronnx.view(path, svg=by_tag).content == result.content


@pytest.mark.parametrize("name", ["<script>alert(1)</script>&", "\"]; end\n click e0 'x'", "\u202e\x07", "x" * 10_000])
def test_names_do_no_harm_to_pictures(name: str) -> None:
    model = annotated(NET, ["a", "b"])
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = name
    svg = ElementTree.fromstring(str(hieronnx.view(model, svg="a").content))
    assert not list(svg.iter("{http://www.w3.org/2000/svg}script"))
    chart = str(hieronnx.view(model, mermaid="a").content)
    assert [line.split()[0][:2] for line in chart.splitlines()[1:]] == ["e0", "e1", "e2", "e0", "e1"]
    assert not any(mark in chart for mark in "\u202e\x07")
    assert len(chart) < 2000


def test_a_mermaid_chart_has_boxes_and_shapes() -> None:
    chart = str(hieronnx.view(annotated(NET, ["a", "b"]), mermaid="/Net").content)
    assert chart.splitlines() == [
        "flowchart TD",
        '    e0(["x"])',
        '    e1["Net<br>a · 1 node"]',
        '    e2["Net<br>b · 1 node"]',
        '    e3(["y"])',
        '    e0 -->|"2"| e1',
        "    e1 --> e2",
        '    e2 -->|"2"| e3',
    ]


def test_a_picture_of_no_call_is_refused() -> None:
    with pytest.raises(hieronnx.InputError, match="no module"):
        hieronnx.view(annotated(NET, ["a", "b"]), svg="nothing")
    with pytest.raises(hieronnx.InputError, match="one form at a time, not for svg and mermaid"):
        hieronnx.view(annotated(NET, ["a", "b"]), svg="a", mermaid="a")


def test_the_command_writes_or_prints_pictures(tmp_path: Path) -> None:
    onnx.save(annotated(NET, ["a", "b"]), tmp_path / "net.onnx")
    done = run("view", tmp_path / "net.onnx", "--svg", "a", "-o", tmp_path / "a.svg")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    assert run("view", tmp_path / "net.onnx", "--mermaid", "a").stdout.startswith("flowchart TD")
    assert run("view", tmp_path / "net.onnx", "--mermaid", "a", "--svg", "a").exit_code == 2
    assert not (tmp_path / "net.html").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"svg": "a", "profile": "p.json"}, "'profile' is for html and model-explorer, not for svg"),
        ({"mermaid": "a", "against": "other.onnx"}, "'against' is for html, not for mermaid"),
        ({"png": "a", "statistics": True}, "'statistics' is for html, not for png"),
        ({"unfold": True}, "'unfold' is for svg and png and mermaid, not for html"),
        ({"model_explorer": "folder", "output": "page.html"}, "'output' is for html .* not for model-explorer"),
    ],
)
def test_an_option_that_has_no_say_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(hieronnx.InputError, match=f"{told}; leave one of the two out"):
        hieronnx.view(annotated(NET, ["a", "b"]), **given)


def test_json_tells_of_files_alone(tmp_path: Path) -> None:
    onnx.save(annotated(NET, ["a", "b"]), tmp_path / "net.onnx")
    done = run("view", tmp_path / "net.onnx", "--svg", "a", "--json")
    assert done.exit_code == 2
    assert "-o" in done.stderr
    assert json.loads(run("view", tmp_path / "net.onnx", "--svg", "a", "--json", "-o", tmp_path / "a.svg").stdout)


@pytest.mark.parametrize("taken", ["net.onnx", "net_hierarchy.json", "other.onnx", "times.json"])
def test_nothing_that_is_read_is_overwritten(tmp_path: Path, taken: str) -> None:
    for name in ("net.onnx", "other.onnx"):
        hieronnx.unfold(annotated(NET, ["a", "b"]), output=tmp_path / name)  # which writes a sidecar, too
    times = {"total_us": 3.0, "calls": [{"module": "a", "call": 0, "own_us": 1.0, "total_us": 2.0}]}
    (tmp_path / "times.json").write_text(json.dumps(times))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    others = ("--against", tmp_path / "other.onnx", "--profile", tmp_path / "times.json")
    done = run("view", tmp_path / "net.onnx", *others, "-o", tmp_path / taken)
    assert done.exit_code == 2
    assert f"would overwrite '{tmp_path / taken}'" in done.stderr
    (tmp_path / "net.json").write_text(json.dumps(times))  # as Model Explorer's graph is called
    done = run("view", tmp_path / "net.onnx", "--profile", tmp_path / "net.json", "--model-explorer", tmp_path)
    assert "would overwrite" in done.stderr
    assert {path: path.read_bytes() for path in before} == before


def test_attributes_that_callers_give_are_shown_by_their_names() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "other" : 1]>
        net (float[2] x) => (float[2] y) { y = other.Scale <by = float {0.5}> (x) }
        <domain: "other", opset_import: ["" : 21]>
        Scale <by> (x) => (y) { c = Constant <value: tensor = @by> ()  y = Mul(x, c) }"""
    data = data_of(hieronnx.view(annotated(onnx.parser.parse_model(text), ["a", "a", "a"])).content)
    shown = {data["texts"][value] for node in data["nodes"] for _, value in node.get("a", ())}
    assert shown == {"@by", "FLOAT scalar 0.5"}


# -- statistics of weights ------------------------------------------------------------------------------------------

HELD = """net (float[4] x) => (float[4] y)
<float[4] w = {-1, 0, 0, 3}, float[4] n = {1, 1, 1, 1}, int64[2] k = {5, 7}, string[1] s = {"a"}> {
  a = Mul(x, w)  b = Add(a, n)  c = Reshape(b, k)  d = Equal(s, s)  y = Identity(b)
}"""


def test_statistics_are_those_of_the_weights() -> None:
    model = annotated(HELD, ["a"] * 5)
    assert "statistics" not in data_of(hieronnx.view(model).content)
    data = data_of(hieronnx.view(model, statistics=True).content)
    found = {data["tensors"][int(tensor)][0]: values for tensor, values in data["statistics"].items()}
    least, most, mean, deviation, zeros, infinite, bars = found["w"]
    assert (least, most, mean, zeros, infinite) == (-1, 3, 0.5, 2, 0)
    assert deviation == pytest.approx(1.5)
    assert [(place, bar) for place, bar in enumerate(bars) if bar] == [(0, 1), (6, 2), (23, 1)]
    assert found["n"] == [1, 1, 1, 0, 0, 0, [0] * 24]
    assert found["k"][:3] == [5, 7, 6]
    assert "s" not in found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([np.nan, np.inf, 2.0], np.float32), [2, 2, 2, 0, 0, 2]),
        (np.array([np.nan], np.float16), [None, None, None, None, 0, 1]),
        (np.array([-1.7e308, 1.7e308]), [-1.7e308, 1.7e308, 0, None, 0, 0]),
        (np.array([True, False]), [0, 1, 0.5, 0.5, 1, 0]),
        (np.array([], np.float32), [None, None, None, None, 0, 0]),
        (np.array([1, -3], ml_dtypes.int4), [-3, 1, -1, 2, 0, 0]),
    ],
)
def test_numbers_of_all_kinds_are_measured(values: npt.NDArray[Any], expected: list[Any]) -> None:
    with np.errstate(all="raise", over="ignore"):
        assert measure(values)[:6] == expected


def test_a_weight_is_measured_whole_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=1000)
    whole = measure(values)
    monkeypatch.setattr("hieronnx.tools.view.statistics._CHUNK", 7)
    parts = measure(values)
    assert parts[2:4] == pytest.approx(whole[2:4])
    assert [*parts[:2], *parts[4:]] == [*whole[:2], *whole[4:]]
    assert whole[6] == np.histogram(values, 24)[0].tolist()


def test_without_statistics_the_weights_may_be_missing_and_with_them_they_may_not(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = annotated(HELD, ["a"] * 5)
    for held in model.graph.initializer[:3]:
        held.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(held), held.name))
    onnx.save(model, path, save_as_external_data=True, location="net.data", size_threshold=0)
    (tmp_path / "net.data").unlink()
    assert run("view", path).exit_code == 0
    done = run("view", path, "--statistics", "-o", tmp_path / "b.html")
    assert done.exit_code == 2
    assert "net.data" in done.stderr
    assert not (tmp_path / "b.html").exists()


# -- PNG ------------------------------------------------------------------------------------------------------------


def test_a_browser_draws_the_picture_as_png(tmp_path: Path) -> None:
    onnx.save(annotated(NET, ["a", "b"]), tmp_path / "net.onnx")
    done = run("view", tmp_path / "net.onnx", "--png", "/Net", "-o", tmp_path / "net.png")
    assert done.exit_code == 0, done.output
    drawn = (tmp_path / "net.png").read_bytes()
    svg = hieronnx.view(tmp_path / "net.onnx", svg="/Net").content
    size = re.search(r'width="(\d+)" height="(\d+)"', str(svg))
    assert size is not None
    assert drawn.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", drawn[16:24]) == (2 * int(size[1]), 2 * int(size[2]))
    assert len(drawn) > 5_000  # there is something on it


@pytest.mark.parametrize("named", ["", "/nowhere/chrome"])
def test_without_a_browser_it_is_said_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    onnx.save(annotated(NET, ["a", "b"]), tmp_path / "net.onnx")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CHROME_PATH", named)
    done = run("view", tmp_path / "net.onnx", "--png", "a", "-o", tmp_path / "a.png")
    assert done.exit_code == 2
    assert "apt-get install chromium" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "a.png").exists()


def test_a_browser_that_draws_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "chrome"
    broken.write_text("#!/bin/sh\necho 'no display' >&2\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CHROME_PATH", str(broken))
    with pytest.raises(hieronnx.HieronnxError, match="did not draw the picture \\(no display\\); ask for SVG"):
        hieronnx.view(annotated(NET, ["a", "b"]), png="a", output=tmp_path / "a.png")


def test_a_png_is_not_printed(tmp_path: Path) -> None:
    onnx.save(annotated(NET, ["a", "b"]), tmp_path / "net.onnx")
    assert "-o" in run("view", tmp_path / "net.onnx", "--png", "a").stderr
