"""The commands as users run them: results on stdout, one line for a mistake, and a light start."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from click.testing import Result
from onnx import TensorProto, helper

from hieronnx import __version__
from support.cli import run

os.environ.setdefault("HF_HUB_OFFLINE", "1")

NETS = """
import sys
import warnings

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU())

    def forward(self, x, scale: float = 2.0):
        return self.layers(x) * scale


class Loud(Net):
    def forward(self, x):
        print("printed by the model")
        warnings.warn("warned by the model")
        print("written to stderr", file=sys.stderr)
        return super().forward(x)


class Branching(Net):
    def forward(self, x):
        return self.layers(x) if x.sum() > 1e9 else self.layers(-x)


class Broken(Net):
    def forward(self, x):
        raise RuntimeError("out of order\\nsecond line")
"""


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run each test in a folder of its own, beside a file of models."""
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    return tmp_path


def run_alone(*args: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, after some Python code."""
    code = f"import sys\n{before}\nfrom hieronnx.cli import main\nmain()"
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)


def export_net(name: str, *options: str) -> Result:
    return run("export", f"nets.py:{name}", "-o", "net.onnx", "--input", "x=float32[2,3]", *options)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Run the demo once for all tests that look at it."""
    folder = tmp_path_factory.mktemp("demo") / "new" / "folder"
    return folder / "demo.onnx", run("demo", "-o", folder)


# --- demo ---


def test_demo_shows_tree_coverage_files_and_what_to_try(demo: tuple[Path, Result]) -> None:
    path, result = demo
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert "├─ Block.0 " in result.stdout
    assert "nodes attributed (100.0 %)" in result.stdout
    assert "mathematical" in result.stdout
    assert f"hieronnx tree {path} '*Attention' --nodes" in result.stdout
    assert path.is_file()
    assert path.with_name("demo_hierarchy.json").is_file()


def test_demo_is_free_of_noise_and_fits_into_80_columns() -> None:
    done = run_alone("demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert Path("demo/demo.onnx").is_file()


# --- export ---


def test_export_tells_files_coverage_and_the_next_command() -> None:
    result = export_net("Net", "--exporter", "torchscript")
    assert (result.exit_code, result.stderr) == (0, "")
    size = Path("net.onnx").stat().st_size
    assert f"net.onnx            {size / 1000:.1f} kB" in result.stdout
    assert "net_hierarchy.json" in result.stdout
    assert "captured  high" in result.stdout
    assert "activation               1           1    100.0         95  ok" in result.stdout
    assert result.stdout.endswith("next: hieronnx tree net.onnx\n")
    assert run("tree", "net.onnx").exit_code == 0


def test_export_json_is_all_there_is_on_stdout() -> None:
    done = run_alone("export", "demo", "-o", "demo.onnx", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result["exporter"] == "dynamo"
    assert result["fallback"] is None
    summary = result["hierarchy"]["summary"]
    assert summary["coverage"] == 100.0
    assert summary["nodes"] == len(onnx.load("demo.onnx").graph.node)
    assert result["hierarchy"]["model"]["opset"] == {"": onnx.load("demo.onnx").opset_import[0].version}
    files = {file["path"]: file["bytes"] for file in result["files"]}
    assert files == {path: Path(path).stat().st_size for path in files}
    assert list(files) == ["demo.onnx", "demo.onnx.data", "demo_hierarchy.json"]


def test_export_passes_the_options_on() -> None:
    options = (
        "--exporter",
        "dynamo",
        "--opset",
        "18",
        "--dynamic",
        "x:0=batch",
        "--torch-nn",
        "all",
        "--no-sidecar",
    )
    result = export_net("Net", *options, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["sidecar"] is None
    assert not Path("net_hierarchy.json").exists()
    model = onnx.load("net.onnx")
    assert model.opset_import[0].version == 18
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    tags = {p.value for node in model.graph.node for p in node.metadata_props if p.key == "hieronnx.tag"}
    assert "/Net/Sequential/Linear.0" in tags


def test_dynamic_axes_go_through_the_torchscript_exporter_too() -> None:
    result = export_net("Net", "--exporter", "torchscript", "--dynamic", "x:0=batch")
    assert result.exit_code == 0, result.stderr
    assert onnx.load("net.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_inputs_come_from_a_file_and_the_command_line_wins() -> None:
    Path("specs.json").write_text('{"x": {"shape": [5, 3], "dtype": "float32", "range": [0, 1]}}')
    options = (
        "export",
        "nets.py:Net",
        "-o",
        "net.onnx",
        "--exporter",
        "torchscript",
        "--input-specs",
        "specs.json",
    )
    for extra, size in [((), 5), (("--input", "x=float32[7,3]"), 7)]:
        result = run(*options, *extra)
        assert result.exit_code == 0, result.stderr
        assert onnx.load("net.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_value == size


def test_without_embedding_and_sidecar_there_is_no_hierarchy_to_count() -> None:
    result = export_net("Net", "--exporter", "torchscript", "--no-embed", "--no-sidecar")
    assert result.exit_code == 0
    assert "no hierarchy was written" in result.stdout
    assert "next:" not in result.stdout


def test_a_fallback_is_said_in_one_line() -> None:
    result = export_net("Branching", "--json")
    assert result.exit_code == 0, result.stderr
    fallback, *others = result.stderr.splitlines()
    assert fallback.startswith("note: dynamo could not export the model (")
    assert all("the trace may not hold for other inputs" in line for line in others)
    values = json.loads(result.stdout)
    assert values["exporter"] == "torchscript"
    assert " ".join(values["fallback"].split()) in fallback


def test_a_trace_that_may_not_hold_is_said_in_one_line() -> None:
    done = run_alone(
        "export", "nets.py:Branching", "-o", "net.onnx", "--input", "x=float32[2,3]", "--exporter", "torchscript"
    )
    expected = "note: torch warns in 1 place that the trace may not hold for other inputs; --debug shows where"
    assert done.stderr.splitlines() == [expected]


def test_stdout_is_the_results_and_stderr_is_ours() -> None:
    command = ("export", "nets.py:Loud", "-o", "net.onnx", "--input", "x=float32[2,3]", "--json")
    done = run_alone(*command, "--exporter", "torchscript")
    json.loads(done.stdout)
    assert set(done.stderr.splitlines()) == {"printed by the model"}
    debugged = run_alone("--debug", *command, "--exporter", "torchscript")
    json.loads(debugged.stdout)
    assert "written to stderr" in debugged.stderr
    assert "UserWarning: warned by the model" in debugged.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_progress_is_shown_on_a_terminal() -> None:
    leader, follower = os.openpty()
    code = "from hieronnx.cli import main; main()"
    options = (
        "export",
        "nets.py:Net",
        "-o",
        "net.onnx",
        "--input",
        "x=float32[2,3]",
        "--exporter",
        "torchscript",
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *options],
        stdout=subprocess.PIPE,
        stderr=follower,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(follower)
        shown = b""
        try:
            while chunk := os.read(leader, 4096):
                shown += chunk
        except OSError:  # Linux says so at the end of a pseudo-terminal
            pass
        os.close(leader)
    assert process.returncode == 0
    assert b"loading nets.py:Net" in shown


# --- tree ---


def test_tree_of_the_demo(demo: tuple[Path, Result]) -> None:
    path, shown = demo
    result = run("tree", path)
    assert result.exit_code == 0
    lines, whole = result.stdout.strip().splitlines(), shown.stdout.splitlines()
    assert [line.startswith(before) for line, before in zip(lines, whole, strict=False)] == [True] * len(lines)
    assert lines[0].endswith("work elsewhere")
    position = next(line for line in lines if "embeddings.position" in line)
    assert "folded: " in position


def test_tree_takes_depth_pattern_nodes_and_all(demo: tuple[Path, Result]) -> None:
    path, _ = demo
    shallow = run("tree", path, "--depth", "1").stdout
    assert [line.split()[1] for line in shallow.splitlines() if line[0:1] in "├└" and line] == [
        "Embeddings",
        "Block.0",
        "Block.1",
        "Head",
    ]
    part = run("tree", path, "*.1.attention").stdout
    assert "Block.1" in part
    assert "Block.0" not in part
    assert "Softmax" in run("tree", path, "*.1.attention", "--nodes").stdout
    assert "Linear.query" not in part
    assert "Linear.query" in run("tree", path, "--all").stdout


def test_tree_json_has_the_same_facts(demo: tuple[Path, Result]) -> None:
    path, _ = demo
    values = json.loads(run("tree", path, "--json", "--nodes").stdout)
    root = values["tree"]
    assert root["call"]["tag"] == "/DemoModel"
    assert root["total"] == len(onnx.load(path).graph.node)
    assert [child["call"]["id"]["module"] for child in root["children"]] == [
        "embeddings",
        "blocks.0",
        "blocks.1",
        "head",
    ]
    assert len(root["nodes"]) == root["own"]


def test_tree_reads_what_is_embedded_where_the_sidecar_is_lost(demo: tuple[Path, Result]) -> None:
    path, _ = demo
    shutil.copy(path, "alone.onnx")
    result = run("tree", "alone.onnx")
    assert result.exit_code == 0
    assert "parameters unknown without the sidecar" in result.stdout
    assert "Embedding.token" in result.stdout


# --- mistakes ---


def write_plain_model() -> None:
    """Write an ONNX file that knows nothing of modules."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "plain", value[:1], value[1:])
    onnx.save(helper.make_model(graph), "plain.onnx")


NET = ("export", "nets.py:Net", "-o", "net.onnx")
MISTAKES = [
    (("export", "no/such/target", "-o", "net.onnx"), "no/such/target"),
    (("export", "nets.py:Nte", "-o", "net.onnx"), "did you mean 'Net'"),
    (("export", "missing.py:Net", "-o", "net.onnx"), "no file"),
    (NET, "pass --input 'x=dtype[shape]'"),
    ((*NET, "--input", "y=float32[2,3]"), "no input 'y' in Net.forward"),
    ((*NET, "--input", "x=float32[2,a]"), "size 'a' is not a whole number"),
    ((*NET, "--input", "x:float32"), "expected name=dtype[shape]"),
    ((*NET, "--input", "x=flaot32[2,3]"), "unknown dtype 'flaot32'; did you mean 'float32'"),
    ((*NET, "--input-specs", "none.json"), "cannot read the input specs"),
    ((*NET, "--input", "x=float32[2,3]", "--dynamic", "x:0"), "cannot read dynamic axes"),
    ((*NET, "--input", "x=float32[2,3]", "--dynamic", "x:7=n"), "has no axis 7"),
    ((*NET, "--torch-nn", "Linear,"), "--torch-nn: '' is not a class name"),
    (("export", "nets.py:Net", "-o", "."), "'.' is a directory"),
    (("export", "nets.py:Net", "-o", "none/net.onnx", "--input", "x=float32[2,3]"), "no folder 'none'"),
    ((*NET, "--exporter", "fast"), "'fast' is not one of 'auto', 'dynamo', 'torchscript'"),
    ((*NET, "--strategy", "guess"), "--strategy"),
    ((*NET, "--opset", "new"), "'new' is not a valid integer range"),
    (("export", "nets.py:Net"), "missing option '-o' / '--output'; see 'hieronnx export --help'"),
    (("export",), "missing argument 'TARGET'"),
    (("exprt",), "no such command 'exprt'"),
    (("--nonsense",), "no such option"),
    (("demo", "-o", "nets.py"), "is a file"),
    (("tree", "missing.onnx"), "no ONNX file at 'missing.onnx'"),
    (("tree", "plain.onnx"), "'plain.onnx' has no hierarchy"),
    (("tree", "nets.py"), "'nets.py'"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[" ".join(command) for command, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_2(command: tuple[str, ...], message: str) -> None:
    write_plain_model()
    before = sorted(Path.cwd().iterdir())
    result = run(*command)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert [path for path in sorted(Path.cwd().iterdir()) if path.name != "__pycache__"] == before


@pytest.mark.parametrize(
    "command",
    [
        ("analyze", "x.onnx", "--markdown", "x.onnx"),
        ("analyze", "x.onnx", "--modules-json", "x_hierarchy.json"),
        ("compare", "x.onnx", "x.onnx", "--markdown", "x.onnx"),
        ("verify", "x.onnx", "--against", "x.onnx", "--markdown", "x.onnx"),
        ("profile", "x.onnx", "--trace", "x_hierarchy.json"),
    ],
)
def test_no_report_is_written_over_what_is_read(command: tuple[str, ...], demo: tuple[Path, Result]) -> None:
    shutil.copy(demo[0], "x.onnx")
    shutil.copy(demo[0].with_name("demo_hierarchy.json"), "x_hierarchy.json")
    before = {path: path.read_bytes() for path in map(Path, ("x.onnx", "x_hierarchy.json"))}
    result = run(*command)
    assert result.exit_code == 2
    assert "which is read for it" in result.stderr
    assert {path: path.read_bytes() for path in before} == before


def test_a_model_that_fails_is_one_line_with_its_cause() -> None:
    result = export_net("Broken", "--exporter", "torchscript")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "RuntimeError: out of order" in result.stderr
    assert not Path("net.onnx").exists()


def test_a_pattern_without_a_match_is_nothing_found(demo: tuple[Path, Result]) -> None:
    result = run("tree", demo[0], "Attention")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: no module call 'Attention'; did you mean '*Attention*'")
    assert "no node or tensor 'Attention'" in result.stderr


@pytest.mark.parametrize(
    ("package", "target", "extra"), [("torch", "demo", "torch"), ("transformers", "pretrained", "hf")]
)
def test_a_missing_extra_names_the_pip_command(package: str, target: str, extra: str) -> None:
    Path("pretrained").mkdir()
    Path("pretrained/config.json").write_text("{}")
    done = run_alone("export", target, "-o", "net.onnx", before=f"sys.modules[{package!r}] = None")
    assert done.returncode == 2
    assert done.stderr == (
        f"error: this needs {package}, which is not installed; run: pip install 'hieronnx[{extra}]'\n"
    )


def test_debug_shows_the_traceback() -> None:
    result = run("--debug", "tree", "missing.onnx")
    assert result.exit_code == 2
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("error: no ONNX file at 'missing.onnx'\n")


def test_a_bug_keeps_its_traceback_and_what_was_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        print("a hint", file=sys.stderr)
        raise ZeroDivisionError

    monkeypatch.setattr("hieronnx.capture.load.load_model", fail)
    result = run("export", "demo", "-o", "net.onnx")
    assert result.exit_code == 2  # not the 1 of a check that found something
    assert result.stderr.startswith("a hint\nTraceback (most recent call last):\n")
    assert result.stderr.endswith("ZeroDivisionError\n")


def test_an_interrupt_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hieronnx.capture.load.load_model", interrupt)
    result = run("export", "demo", "-o", "net.onnx")
    assert result.exit_code == 130
    assert result.stderr.strip() == "interrupted"


# --- a light start ---


@pytest.mark.parametrize("command", ["", "export", "tree", "demo"])
def test_help_imports_nothing_heavy(command: str) -> None:
    heavy = ["torch", "onnxruntime", "transformers", "onnx", "onnx_ir", "numpy", "msgspec", "rich"]
    report = f"import atexit\natexit.register(lambda: print([m for m in {heavy} if m in sys.modules]))"
    done = run_alone(*command.split(), "--help", before=report)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: hieronnx")
    assert done.stdout.splitlines()[-1] == "[]"


def test_tree_does_not_import_torch(demo: tuple[Path, Result]) -> None:
    blocked = "for name in ('torch', 'onnxruntime', 'transformers'): sys.modules[name] = None"
    done = run_alone("tree", str(demo[0]), before=blocked)
    assert (done.returncode, done.stderr) == (0, "")


def test_version_and_bare_command() -> None:
    assert run("--version").stdout == f"hieronnx {__version__}\n"
    bare = run()
    assert bare.exit_code == 0
    assert bare.stdout == run("--help").stdout


# --- mistakes that are told at once ---

SLOW = ["torch", "onnxruntime", "transformers", "huggingface_hub"]
EARLY = [
    (("./no-such-model", "-o", "net.onnx"), "no folder './no-such-model'"),
    (("models/brt", "-o", "net.onnx"), "no folder 'models/brt'; did you mean 'bert'?"),
    (("a/b/c", "-o", "net.onnx"), "no folder 'a/b/c'"),
    (("~nobody/model", "-o", "net.onnx"), "no folder '~nobody/model'"),
    (("models/bert", "-o", "none/net.onnx"), "no folder 'none' to write 'net.onnx' into"),
    (("no_such_module.nets:Net", "-o", "net.onnx"), "no module 'no_such_module'"),
    (("models/bert", "-o", "net.onnx", "--torch-nn", "Lineer"), "did you mean 'Linear'"),
    (("models/bert", "-o", "net.onnx", "--opset", "99"), "no opset 99; onnx has 1 to "),
    (("models/bert", "-o", "net.onnx", "--output-names", "a,,b"), "cannot read the names 'a,,b'"),
    (("models/bert", "-o", "net.onnx", "--inputs-from", "no.py:make"), "no file "),
]


def test_mistakes_are_told_before_anything_slow_is_imported() -> None:
    Path("models/bert").mkdir(parents=True)
    Path("models/bert/config.json").write_text("{}")
    code = (
        f"import sys\nfrom support.cli import run\nfor command in {[command for command, _ in EARLY]}:\n"
        "    result = run('export', *command)\n    print(result.exit_code, result.stderr.strip())\n"
        f"print([name for name in {SLOW} if name in sys.modules])"
    )
    folder = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    *lines, imported = done.stdout.splitlines()
    assert imported == "[]"
    for line, (_, message) in zip(lines, EARLY, strict=True):
        assert line.startswith("2 error: ")
        assert message in line


def test_a_folder_that_is_not_there_never_asks_the_network() -> None:
    refuse = "import socket\ndef refuse(*args): raise AssertionError('the network was asked')\n"
    blocked = f"{refuse}socket.socket.connect = refuse"
    done = run_alone("export", "./bert-tiny", "-o", "net.onnx", before=blocked)
    assert (done.returncode, done.stderr.partition(";")[0]) == (2, "error: no folder './bert-tiny'")


REFUSE = "import socket\ndef refuse(*args, **options): raise socket.gaierror('blocked')\n"
BLOCKED = f"{REFUSE}socket.getaddrinfo = refuse"


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let the hub be asked, with an empty cache, which is returned."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-home"))
    return tmp_path / "hub-home" / "hub"


def save_tiny_model(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=50, **sizes)).save_pretrained(folder)


def save_in_cache(cache: Path, name: str) -> None:
    """Put a model where huggingface_hub keeps what it has loaded."""
    of_model, commit = cache / f"models--{name.replace('/', '--')}", "0" * 40
    save_tiny_model(of_model / "snapshots" / commit)
    (of_model / "refs").mkdir()
    (of_model / "refs" / "main").write_text(commit)


@pytest.mark.parametrize(("target", "near"), [("mybertt", "./mybert"), ("modles/BERT", "./models/bert")])
def test_a_mistyped_folder_is_told_before_the_hub_is_asked(online: Path, target: str, near: str) -> None:
    for folder in ("mybert", "models/bert"):
        Path(folder).mkdir(parents=True)
        Path(folder, "config.json").write_text("{}")
    done = run_alone("export", target, "-o", "net.onnx", before=BLOCKED)
    expected = f"no folder '{target}'; did you mean '{near}'? If the hub is meant, write 'hf://{target}'"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {expected}\n")


def test_a_hub_that_cannot_be_reached_is_told_without_pauses_to_ask_again(online: Path) -> None:
    Path("mybert").mkdir()  # which holds no model, so that nobody can have meant it
    stop = "import time\ndef stop(seconds): raise SystemExit('it waits to ask again')\ntime.sleep = stop"
    done = run_alone("export", "mybertt", "-o", "net.onnx", before=f"{BLOCKED}\n{stop}")
    note, error = done.stderr.splitlines()
    assert note == "note: asking the Hugging Face hub for 'mybertt': there is no such folder"
    assert error.startswith("error: no folder and no reachable Hugging Face model 'mybertt'")
    assert done.returncode == 2


def test_what_was_loaded_from_the_hub_before_needs_no_network(online: Path) -> None:
    save_in_cache(online, "org/tiny")
    save_tiny_model(Path("orgs/tinyy"))  # a name that is nearly the same changes nothing
    done = run_alone("export", "org/tiny", "-o", "net.onnx", before=BLOCKED)
    assert done.returncode == 0, done.stderr


def test_a_name_of_the_hub_that_transformers_would_take_for_a_folder_is_refused() -> None:
    Path("mybert").mkdir()
    result = run("export", "hf://mybert", "-o", "net.onnx")
    assert (result.exit_code, "would take the folder 'mybert' for 'hf://mybert'" in result.stderr) == (2, True)


def test_the_cache_of_a_decoder_can_be_asked_of_a_name_of_the_hub() -> None:
    result = run("export", "hf://no-one/no-such-model", "-o", "net.onnx", "--with-past")
    assert "no reachable Hugging Face model 'hf://no-one/no-such-model'" in result.stderr


# --- names, inputs and axes ---

MORE_NETS = """
import torch
from torch import nn


class Nested(nn.Module):
    def forward(self, pair, *, more):
        return {"total": pair[0] + pair[1], "rest": more["x"] * 2}


class Plain(nn.Module):
    example_inputs = (torch.ones(2, 3), torch.ones(2, 3))

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout()

    def forward(self, left, right):
        return self.dropout(left) + right


plain = Plain()


def make_nested():
    return ((torch.ones(2, 3), torch.ones(2, 3)),), {"more": {"x": torch.ones(4)}}


def make_plain(model):
    return torch.ones(4, 3), torch.ones(4, 3)


def make_list():
    return [torch.ones(2)]
"""


@pytest.fixture
def more_nets() -> None:
    Path("more.py").write_text(MORE_NETS)


def export_more(name: str, *options: str) -> Result:
    return run("export", f"more.py:{name}", "-o", "net.onnx", "--exporter", "torchscript", *options)


def boundary() -> tuple[list[str], list[str]]:
    graph = onnx.load("net.onnx").graph
    return [value.name for value in graph.input], [value.name for value in graph.output]


def test_inputs_come_from_a_function(more_nets: None) -> None:
    result = export_more("Nested", "--inputs-from", "more.py:make_nested")
    assert result.exit_code == 0, result.stderr
    assert boundary() == (["pair_0", "pair_1", "more_x"], ["total", "rest"])
    result = export_more("Plain", "--inputs-from", "more.py:make_plain", "--json")
    assert onnx.load("net.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4
    assert json.loads(result.stdout)["made_up"] == {}
    annotated = ("annotate", "net.onnx", "--model", "more.py:Plain", "-o", "net.onnx")
    assert run(*annotated, "--inputs-from", "more.py:make_plain").exit_code == 0
    for maker, message in [
        ("make_list", "returned a list; expected a tuple"),
        ("make_nested", "must be given right, too; let the function"),
    ]:
        result = export_more("Plain", "--inputs-from", f"more.py:{maker}")
        assert result.exit_code == 2
        assert message in result.stderr


def test_names_are_given_or_left_to_torch(more_nets: None) -> None:
    assert export_more("Plain", "--input-names", "a,b", "--output-names", "sum").exit_code == 0
    assert boundary() == (["a", "b"], ["sum"])
    assert export_more("Plain", "--torch-names").exit_code == 0
    assert boundary()[1] != ["output"]


def test_the_report_says_what_was_made_up_and_what_is_fixed(more_nets: None) -> None:
    result = export_more("Plain", "--dynamic", "*:0=batch")
    assert result.exit_code == 0, result.stderr
    assert "inputs made up from the model's example_inputs: left, right; --input gives others" in result.stdout
    assert "axes with one size only, the example's: left[1: 3], right[1: 3]" in result.stdout
    assert "dynamic axes: file and model do the same at batch 4" in result.stdout
    values = json.loads(export_more("Plain", "--dynamic", "*:0=batch", "--json").stdout)
    assert values["made_up"] == {"left": "example_inputs", "right": "example_inputs"}
    assert values["fixed_axes"] == {"left": {"1": 3}, "right": {"1": 3}}
    assert values["axes"]["passed"] is True


def test_an_axis_that_is_not_dynamic_is_no_silent_success(more_nets: None) -> None:
    result = export_more("Plain", "--dynamic", "left:0=batch")
    assert result.exit_code == 1
    assert "note: the file is not dynamic as asked" in result.stderr
    assert "--dynamic '*:0=batch'" in result.stderr
    assert export_more("Plain", "--dynamic", "left:0=batch", "--no-check").exit_code == 0


def test_a_model_is_exported_in_eval_mode_unless_it_is_to_train(more_nets: None) -> None:
    for options, dropped in [((), False), (("--train",), True)]:
        result = run("export", "more.py:plain", "-o", "net.onnx", *options)
        assert (result.exit_code, result.stderr) == (0, "")
        assert ("Dropout" in [node.op_type for node in onnx.load("net.onnx").graph.node]) == dropped


@pytest.mark.parametrize("size", ["99999999999999999999", "4000000000", "1000000,1000000"])
def test_absurd_sizes_of_inputs_are_one_line(size: str, tmp_path: Path) -> None:
    result = run("export", "demo", "-o", tmp_path / "m.onnx", "--input", f"input_ids=int64[{size}]")
    assert result.exit_code == 2
    told = r"error: input 'input_ids': shape .* has more than .* elements, .*; give smaller sizes\n"
    assert re.fullmatch(told, result.stderr)


def test_quiet_commands_print_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    model, made = tmp_path / "demo.onnx", tmp_path / "made.onnx"
    commands = [
        ("export", "demo", "-o", model),
        ("optimize", model, "-o", made, "--with", "ort-basic", "--verify"),
        ("carry", model, made, "-o", made),
        ("quantize", model, "-o", tmp_path / "int8.onnx", "--with", "dynamic"),
        ("annotate", model, "--model", "demo", "-o", tmp_path / "annotated.onnx"),
        ("place", model, "-o", tmp_path / "placed.onnx", "--on", "cpu:*"),
        ("extract", model, "blocks.0", "-o", tmp_path / "part.onnx"),
        ("replace", model, "blocks.0", tmp_path / "part.onnx", "-o", tmp_path / "replaced.onnx"),
        ("split", model, "--stages", "2", "--into", tmp_path / "stages"),
        ("fold", model, "-o", tmp_path / "folded.onnx"),
        ("unfold", tmp_path / "folded.onnx", "-o", tmp_path / "unfolded.onnx"),
    ]
    for command in commands:
        result = run(*command, "--quiet")
        assert (result.exit_code, result.stdout) == (0, ""), command
    assert run("validate", model, "--quiet").stdout == "nothing wrong\n"


BAKED = """
from torch import nn


class Baked(nn.Module):
    def forward(self, x):
        return x / float(x.shape[0])
"""


def test_quiet_commands_print_what_is_wrong(tmp_path: Path) -> None:
    run("export", "demo", "-o", tmp_path / "demo.onnx")
    model = onnx.load(tmp_path / "demo.onnx")
    model.graph.node[-1].metadata_props[0].value = "nothing"
    onnx.save(model, tmp_path / "demo.onnx")
    result = run("validate", tmp_path / "demo.onnx", "--quiet")
    assert result.exit_code == 1
    assert re.fullmatch(r"\d+ errors?(, \d+ \w+)*: failed\n", result.stdout)
    (tmp_path / "baked.py").write_text(BAKED)
    options = ("--input", "x=float32[3,2]", "--exporter", "torchscript", "--dynamic", "x:0=rows", "--quiet")
    result = run("export", f"{tmp_path / 'baked.py'}:Baked", "-o", tmp_path / "baked.onnx", *options)
    assert result.exit_code == 1
    assert "at rows 6" in result.stdout
