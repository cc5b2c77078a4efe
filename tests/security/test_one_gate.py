"""Nothing outside `files/` opens a path that came out of a file: who opens any is listed, with the path's origin.

A path that a file names goes through `files/external.py`, and what is written through `files/staging.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import hieronnx

PACKAGE = Path(hieronnx.__file__).parent
OPENING = frozenset(
    {"open", "read_bytes", "read_text", "write_bytes", "write_text", "unlink", "rename", "touch", "symlink_to"}
    | {"hardlink_to", "copy2", "copyfile", "copytree", "rmtree", "memmap", "fromfile", "tofile", "mkfifo", "truncate"}
    | {"load_external_data_for_model", "load_external_data_for_tensor", "save_model", "load_model"}
)
"""Methods and functions that open, make or remove a file, whatever they are called on."""
OPENING_OF = frozenset(
    {"onnx.load", "onnx.save", "ir.load", "ir.save", "np.load", "np.save", "np.savez", "os.replace", "os.remove"}
    | {"os.link", "os.rename", "shutil.copy", "shutil.move", "torch.load", "torch.save", "numpy.load"}
)
"""Those whose names alone say nothing."""

ALLOWED = {
    # the user's own paths, from the command line
    "runtime.inputs": {"np.load"},  # inputs, without pickles
    "cli.syntax": {"read_bytes"},  # specs of inputs
    "tools.split.costs": {"read_bytes"},  # a saved profile
    "tools.profile.comparing": {"read_bytes"},  # likewise
    "tools.view.measured": {"read_bytes"},  # likewise, and a saved verification
    "tools.view.png": {"write_text", "read_bytes"},  # a picture, in a folder of ours
    # a source file of torch's
    "capture.load": {"read_text"},
    "cli.loading": {"load_model"},  # hieronnx's own, of PyTorch models
    "cli.demo": {"load_model"},
    # staging folders, under names that hieronnx gives
    "capture.routes": {"unlink"},
    "capture.torchscript.route": {"open"},
    "capture.recorded": {"open", "read_bytes", "ir.load"},
    "runtime.sessions": {"ir.save"},
    # a trace of the user's or ONNX Runtime's own, in a folder of ours; weights, after check_data let them pass
    "runtime.profiles": {"read_bytes", "unlink", "load_external_data_for_tensor"},
    "tools.split.splitting": {"write_bytes"},
    "tools.verify.dumping": {"write_text"},  # that of files/
    "tools.split.triton": {"copyfile", "write_text"},
    "tools.running": {"onnx.load", "onnx.save", "write_bytes", "load_external_data_for_tensor"},
    # the model that the user named, after check_data let all of its data pass
    "tools.optimize": {"ir.load", "ir.save", "save_model"},
    # a copy of that in a folder of ours, with data that was checked, and what is written beside it
    "tools.quantize": {"onnx.load", "write_bytes"},
    "tools.precision.four_bits": {"onnx.load", "write_bytes", "save_model"},
    "tools.precision.half": {"ir.save"},
    "tools.precision.own_weights": {"onnx.load", "write_bytes"},
}


def find_openings(tree: ast.AST) -> Iterator[str]:
    """Yield what a module calls to open, make or remove files."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if name in OPENING_OF:
            yield name
        elif last in OPENING:
            yield last


def test_who_opens_files_outside_the_one_room_is_listed() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        openings = set(find_openings(ast.parse(path.read_text("utf-8"))))
        if openings and not module.startswith("files."):
            found[module] = openings
    assert found == ALLOWED, "go through files/, or say here where the path is from"


def test_the_search_finds_what_opens() -> None:
    text = 'open(p); Path(p).read_bytes(); onnx.load(p); np.load(p); shutil.copyfile(a, b); f.write_text("")'
    assert set(find_openings(ast.parse(text))) == {
        "open",
        "read_bytes",
        "onnx.load",
        "np.load",
        "copyfile",
        "write_text",
    }
    assert not list(find_openings(ast.parse("text.replace(a, b); json.loads(a); x.numpy()")))


def test_a_location_of_external_data_is_joined_to_a_folder_in_one_place() -> None:
    """Whoever reads `location` out of a model asks `look_up`; nobody else puts it behind a folder."""
    joining = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and "location" in ast.unparse(node.right):
                joining.append(f"{path.relative_to(PACKAGE)}: {ast.unparse(node)}")
    assert joining == [
        "files/external.py: folder / location",  # in look_up
        "files/external.py: folder / location",  # where a copy goes, of what look_up let pass
        "files/writing.py: path.parent / location",  # only to compare with the output
        "tools/results.py: model.parent / location",  # only to list what was written
    ]
