"""Who may import whom, how large files and folders may be, and that no model family is known by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hieronnx

PACKAGE = Path(hieronnx.__file__).parent
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix("."): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# hierarchy ← graph ← files ← {runtime, capture, match} ← attribute ← tools ← report ← cli
LEVELS = {"errors": 0, "_version": 0, "hierarchy": 1, "graph": 2, "files": 3, "runtime": 4, "capture": 4, "match": 4}
LEVELS |= {"attribute": 5, "tools": 6, "report": 7, "cli": 8, "__main__": 9, "": 9}
TORCH = {"capture", "attribute"}


def part_of(module: str) -> str:
    return module.partition(".")[0]


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that are imported, `from a import b` as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def own_imports(tree: ast.AST) -> set[str]:
    """Return the modules of this package that are imported, without its name; its root is left out."""
    names = {name.removeprefix("hieronnx.") for name in imports(tree) if name.startswith("hieronnx.")}
    return {name if name in FILES else name.rpartition(".")[0] for name in names} - {""}


def foreign_imports(tree: ast.AST) -> set[str]:
    return {name.partition(".")[0] for name in imports(tree)} - {"hieronnx"}


class Running(ast.NodeTransformer):
    """Leaves what runs: all but imports for type checkers, and if asked only what runs when a module is imported."""

    def __init__(self, *, top_level: bool) -> None:
        self.top_level = top_level

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        return None if self.top_level else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def parse(module: str, *, top_level: bool = False, typing: bool = True) -> ast.AST:
    tree = ast.parse(FILES[module].read_text("utf-8"))
    return tree if typing and not top_level else Running(top_level=top_level).visit(tree)


@pytest.mark.parametrize("module", FILES)
def test_imports_follow_the_arrows(module: str) -> None:
    room = part_of(module)
    imported = {part_of(name) for name in own_imports(parse(module))} - {room}
    assert not {name for name in imported if LEVELS[name] >= LEVELS[room]}


def test_no_module_imports_itself_in_a_circle() -> None:
    imported = {module: own_imports(parse(module, typing=False)) - {module} for module in FILES}
    list(TopologicalSorter(imported).static_order())


def test_the_listing_is_short_and_the_readme_explains_it() -> None:
    readme = (PACKAGE.parent.parent / "README.md").read_text("utf-8")
    map_of_sources = readme.partition("## Map of the sources")[2]
    entries = [path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 16
    lines = re.findall(r"^\| (`.+?`) \| (.*)$", map_of_sources, re.MULTILINE)
    rows = {name: text for names, text in lines for name in re.findall(r"`([\w.]+)/?`", names)}
    assert set(rows) == set(entries)
    named = [PACKAGE / entry / name for entry, text in rows.items() for name in re.findall(r"`([\w/]+\.py)`", text)]
    assert len(named) > 20
    assert [path for path in named if not path.exists()] == []


@pytest.mark.parametrize("module", FILES)
def test_no_file_is_too_long_to_read(module: str) -> None:
    assert len(FILES[module].read_text("utf-8").splitlines()) <= 400


@pytest.mark.parametrize("module", FILES)
def test_only_capture_and_attribute_import_torch_at_once(module: str) -> None:
    heavy = foreign_imports(parse(module, top_level=True)) & {
        "torch",
        "onnxscript",
        "transformers",
        "onnxruntime",
    }
    assert heavy <= ({"torch"} if part_of(module) in TORCH else set())


@pytest.mark.parametrize("module", [m for m in FILES if part_of(m) in {"errors", "hierarchy", "report", "cli", ""}])
def test_records_and_reports_never_import_torch_or_onnx(module: str) -> None:
    assert not foreign_imports(parse(module)) & {"torch", "onnx", "onnx_ir"}


@pytest.mark.parametrize("module", [m for m in FILES if part_of(m) == "report"])
def test_reports_neither_print_nor_open(module: str) -> None:
    calls = [node.func for node in ast.walk(parse(module)) if isinstance(node, ast.Call)]
    assert not {func.id for func in calls if isinstance(func, ast.Name)} & {"print", "open"}
    assert not foreign_imports(parse(module)) & {"click", "sys", "os"}


# --- no model family ---

FAMILIES = re.compile(
    r"(?i:bert|gpt|llama|llava|resnet|whisper|mamba|wav2vec|hubert|convnext|segformer|mistral|mixtral|qwen"
    r"|gemma|deepseek|falcon|pegasus|longformer|xlnet|electra|efficientnet|mobilenet|yolo|diffusion|blip)"
    r"|(?<![A-Za-z])(?:[tT]5|[vV]i[tT]|[pP]hi|[bB]art|[sS]win|[dD]ei[tT]|CLIP|BLOOM)(?![a-z])"
)


def names_and_strings(tree: ast.AST) -> Iterator[str]:
    """Yield every identifier and every string but docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented)]
    # A string that stands alone is a docstring, also below a field.
    docs = {id(item.value) for body in bodies for item in body if isinstance(item, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value
        for field in ("id", "attr", "name", "arg", "module"):
            if isinstance(value := getattr(node, field, None), str):
                yield value


@pytest.mark.parametrize("module", FILES)
def test_nothing_knows_a_model_family(module: str) -> None:
    assert [text for text in names_and_strings(parse(module)) if FAMILIES.search(text)] == []


@pytest.mark.parametrize("text", ["BertLayer", "is_t5", "ViTModel", "gpt_neox", "CLIPModel", "vit", "distilbert"])
def test_the_search_finds_families(text: str) -> None:
    assert FAMILIES.search(text)
