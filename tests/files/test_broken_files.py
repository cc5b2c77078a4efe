"""Whatever is in a file: one clear line, or a finding, and nothing of it obeyed by the terminal."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import pytest
from click.testing import Result
from hypothesis import example, given
from hypothesis import strategies as st

import hieronnx
import support.cli
from hieronnx.errors import HieronnxError
from hieronnx.files.opening import load, open_model, read_sidecar, sidecar_path
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.report.findings import render_findings
from hieronnx.report.summary import render_coverage, render_model
from hieronnx.report.tree import grow_tree, render_tree, tree_to_json
from hieronnx.tools.results import summary_to_dict
from hieronnx.tools.validate.validating import ValidateResult
from support.layered import spoil, write_layered
from support.onnxdata import made

COMMANDS = [["tree"], ["tree", "--json"], ["validate"], ["validate", "--json"], ["analyze"], ["compare"]]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e]")
EVIL = "\x1b[2J\x1b]0;owned\x07\u202e\x9b31m\r\n\t\x00"


def run(command: list[str], model: Path) -> Result:
    files = [str(model)] * (2 if command[0] == "compare" else 1)
    return support.cli.run(*command, *files)


def assert_told(result: Result) -> None:
    """Assert that a command ended as it should: no traceback, no control characters, one line if it failed."""
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (0, 1, 2)
    assert not CONTROL.search(result.output)
    if result.exit_code == 2:
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith("error: ")


def assert_one_line(error: HieronnxError) -> None:
    assert str(error)
    assert "Traceback" not in str(error)


# -- files that are not what they should be ------------------------------------------------------------------------


def whole(path: Path) -> None:
    write_layered(path)


def truncated(path: Path) -> None:
    write_layered(path)
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("this is no model\n" * 100)


def page(path: Path) -> None:
    path.write_text("<!DOCTYPE html><html>not found</html>")


def no_graph(path: Path) -> None:
    path.write_bytes(onnx.ModelProto(ir_version=10).SerializeToString())


def folder(path: Path) -> None:
    path.mkdir()


def names_that_are_no_text(path: Path) -> None:
    write_layered(path)
    path.write_bytes(path.read_bytes().replace(b"add1_1", b"add\xff_1"))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("make", [truncated, empty, text, page, no_graph, folder, names_that_are_no_text])
def test_a_file_that_is_no_model_is_one_line(tmp_path: Path, command: list[str], make: Callable[[Path], None]) -> None:
    make(tmp_path / "model.onnx")
    result = run(command, tmp_path / "model.onnx")
    assert_told(result)
    assert result.exit_code == 2
    assert "model.onnx" in result.stderr


def sidecar_text(content: str) -> Callable[[Path], None]:
    return lambda model: void(sidecar_path(model).write_text(content, "utf-8"))


def sidecar_folder(model: Path) -> None:
    sidecar_path(model).unlink()
    sidecar_path(model).mkdir()


def sidecar_of_another(model: Path) -> None:
    other = write_layered(model.with_name("other.onnx"), layers=2, width=5)
    shutil.move(sidecar_path(other), sidecar_path(model))


def changed(*keys: str | int, to: Any) -> Callable[[Path], None]:
    """Return a change of the sidecar."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = to

    return lambda model: spoil(model, change)


def void(_: object) -> None:
    return None


DEEP = [{"module": "", "call": 0, "parent": None, "via": "", "tag": "/Net"}] + [
    {"module": "layers.0", "call": n, "parent": n, "via": "layers.0", "tag": "/Net"} for n in range(2000)
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    "damage",
    [
        sidecar_text(""),
        sidecar_text("{"),
        sidecar_text("[]"),
        sidecar_text("null"),
        sidecar_text("[" * 100_000),
        sidecar_text('{"format_version": "1.0"}'),
        sidecar_folder,
        sidecar_of_another,
        changed("format_version", to="3.1"),
        changed("format_version", to=1),
        changed("calls", to=[]),
        changed("calls", to=DEEP),
        changed("modules", to={}),
        changed("nodes", to={}),
        changed("nodes", 0, "tags", to=[1]),
        changed("model", to={}),
        changed("model", "inputs", to={"x": 1}),
        changed("unknown", to={"a": [1]}),
        changed("calls", 0, "module", to="layers.0"),
    ],
)
def test_a_sidecar_that_is_none_is_one_line_or_a_finding(
    tmp_path: Path, command: list[str], damage: Callable[[Path], object]
) -> None:
    model = write_layered(tmp_path / "model.onnx")
    damage(model)
    result = run(command, model)
    assert_told(result)
    if command[0] == "validate":
        assert result.exit_code == (0 if "unknown" in json.dumps(_keys(model)) else 1)


def _keys(model: Path) -> list[str]:
    try:
        document = json.loads(sidecar_path(model).read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    return list(document) if isinstance(document, dict) else []


# -- names -----------------------------------------------------------------------------------------------------------


def rename(model: Path, name: str) -> None:
    """Give a node, a tensor, a module, its class, a tag and a key this name, in both forms."""
    loaded = onnx.load(model)
    node = loaded.graph.node[4]
    node.name = f"{name} node"
    old, node.output[0] = node.output[0], f"{name} tensor"
    loaded.graph.node[5].input[0] = f"{name} tensor"
    for entry in node.metadata_props:
        if entry.key == "hieronnx.module":
            entry.value = f"{name} module"
    onnx.save(loaded, model)

    def change(document: dict[str, Any]) -> None:
        document["nodes"][4] |= {"name": f"{name} node", "output": f"{name} tensor", "evidence": "captured"}
        document["modules"]["layers.2"]["class"] = f"{name} class"
        document["calls"][3]["tag"] = f"/Net/{name}"
        document["calls"][2]["via"] = f"{name} via"
        document[f"{name} key"] = old

    spoil(model, change)


@pytest.mark.parametrize("command", [*COMMANDS, ["tree", "--nodes"], ["tree", "--all"]], ids=" ".join)
@pytest.mark.parametrize("sidecar", [True, False])
@pytest.mark.parametrize("name", [EVIL, "x" * 1_000_000], ids=["control", "million"])
def test_names_are_shown_clean_and_not_without_end(
    tmp_path: Path, command: list[str], sidecar: bool, name: str
) -> None:
    model = write_layered(tmp_path / "model.onnx")
    rename(model, name)
    if not sidecar:
        sidecar_path(model).unlink()
    result = run(command, model)
    assert_told(result)
    if "--json" not in command:
        assert len(result.output) < 200_000


def test_what_onnx_ir_logs_of_a_file_is_not_shown_raw(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.onnx"
    write_layered(model, sidecar=False)
    loaded = onnx.load(model)
    loaded.graph.node[4].input[0] = f"{EVIL} from nowhere"
    onnx.save(loaded, model)
    for options in ([], ["--debug"]):
        result = support.cli.run(*options, "validate", model)
        assert_told(result)
    assert not CONTROL.search(capfd.readouterr().err)


# -- fuzzing ---------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
EDITS = st.lists(
    st.tuples(st.sampled_from(["replace", "remove", "repeat", "copy"]), st.randoms(use_true_random=False), VALUES),
    min_size=1,
    max_size=4,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a JSON value: its container and its key."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def edit(document: Any, edits: list[tuple[str, Any, Any]]) -> None:
    """Change a JSON value here and there."""
    for kind, random, value in edits:
        everywhere = list(places(document))
        if not everywhere:
            return
        container, key = random.choice(everywhere)
        other, other_key = random.choice(everywhere)
        if kind == "remove":
            del container[key]
        elif kind == "repeat" and isinstance(container, list):
            container.append(json.loads(json.dumps(container[key])))
        elif kind == "copy":
            container[key] = json.loads(json.dumps(other[other_key])) if _holds(other, other_key) else value
        else:
            container[key] = value


def _holds(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else key < len(container)


def show(hierarchy: Hierarchy) -> None:
    """Show a hierarchy in every way there is."""
    for all_calls in (False, True):
        tree = grow_tree(hierarchy, all_calls=all_calls)
        json.dumps(tree_to_json(tree, nodes=True))
        assert not CONTROL.search(render_tree(tree, nodes=True))
    assert not CONTROL.search(render_coverage(hierarchy) + render_model(hierarchy))
    json.dumps(summary_to_dict(hierarchy))


def show_findings(findings: ValidateResult) -> None:
    assert not CONTROL.search(render_findings(findings))
    json.dumps(findings.to_dict())


@pytest.fixture(scope="module")
def original() -> Iterator[Path]:
    with TemporaryDirectory() as place:
        yield write_layered(Path(place) / "model.onnx", layers=2, width=2)


@pytest.fixture(scope="module")
def document(original: Path) -> str:
    return sidecar_path(original).read_text("utf-8")


def check_sidecar(model: Path) -> None:
    """Check that a sidecar loads, and then works everywhere, or is one line; and that validate says the same of it."""
    findings = hieronnx.validate(model)
    show_findings(findings)
    sidecar = sidecar_path(model)
    try:
        hierarchy = read_sidecar(sidecar)
    except HieronnxError as error:
        assert_one_line(error)
        assert not findings.passed
    else:
        show(hierarchy)


@given(edits=EDITS)
def test_any_edit_of_a_sidecar_is_read_or_refused(original: Path, document: str, edits: Any) -> None:
    changed = json.loads(document)
    edit(changed, edits)
    sidecar_path(original).write_text(json.dumps(changed), "utf-8")
    check_sidecar(original)


@given(value=VALUES)
@example(value="\ud800")
def test_any_json_is_read_or_refused(original: Path, value: Any) -> None:
    sidecar_path(original).write_text(json.dumps(value), "utf-8")
    check_sidecar(original)


@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_as_a_sidecar(original: Path, content: bytes) -> None:
    sidecar_path(original).write_bytes(content)
    check_sidecar(original)


@given(data=st.data())
def test_any_edit_of_the_metadata_is_read_or_refused(original: Path, data: st.DataObject) -> None:
    sidecar_path(original).unlink(missing_ok=True)
    model = onnx.load(original)
    rows = {entry.key: entry for entry in model.metadata_props}["hieronnx.calls"]
    calls = json.loads(rows.value)
    edit(calls, data.draw(EDITS | st.just([])))
    rows.value = json.dumps(calls)
    entries = [entry for node in model.graph.node for entry in node.metadata_props]
    for entry in data.draw(st.lists(st.sampled_from(range(len(entries))), max_size=3)):
        entries[entry].value = data.draw(
            st.text(max_size=8, alphabet=st.characters(exclude_categories=["Cs"])) | VALUES.map(json.dumps)
        )
    findings = hieronnx.validate(model)
    show_findings(findings)
    try:
        hierarchy = open_model(model).hierarchy
    except HieronnxError as error:
        assert_one_line(error)
        assert not findings.passed
    else:
        assert hierarchy is not None
        show(hierarchy)


@given(data=st.data())
def test_any_damage_to_a_model_is_read_or_refused(original: Path, data: st.DataObject) -> None:
    contents = [original.read_bytes(), *map(made, ("bodies", "functions", "graph_lists", "every_storage"))]
    content = bytearray(data.draw(st.sampled_from(contents)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    path = original.with_name("damaged.onnx")
    path.write_bytes(content)
    for read in (hieronnx.validate, load, open_model):
        try:
            found = read(path)
        except HieronnxError as error:
            assert_one_line(error)
        else:
            if isinstance(found, ValidateResult):
                show_findings(found)
