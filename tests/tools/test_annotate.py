"""Annotate: a file from elsewhere gets its hierarchy, whatever was done to it; a file of another model gets none."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
import torch
from benchmarks.anonymize import anonymize_file
from torch import Tensor, nn

import hieronnx
from hieronnx.attribute.file import Disagreement
from hieronnx.errors import HieronnxError, InputError, MismatchError
from hieronnx.report.summary import render_annotation
from support.cli import run
from support.exports import exported, quiet
from support.transformations import transform
from support.zoo import CASES

STRATEGIES = ("htp", "usage_based")


def annotate_case(
    name: str, file: Path, *, change: Callable[[nn.Module], object] = lambda model: None, **options: object
) -> hieronnx.AnnotateResult:
    """Annotate a file with a zoo model, changed or not."""
    case = CASES[name]
    model = case.build()
    change(model)
    return hieronnx.annotate(file, model.eval(), case.args(), case.kwargs(), **options)


def find_layers(model: nn.Module) -> nn.ModuleList:
    return next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1)


def change_weights(model: nn.Module) -> None:
    """Move all weights by a third of their spread, as another training would."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.numel() > 1:
            parameter.data += 0.3 * parameter.data.std() * torch.randn(parameter.shape, generator=generator)


def add_layer(model: nn.Module) -> None:
    layers = find_layers(model)
    layers.append(copy.deepcopy(layers[0]))
    change_weights(layers[-1])


def drop_layer(model: nn.Module) -> None:
    del find_layers(model)[-1]


# -- files of the model -------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_file_without_names_gets_a_hierarchy_in_it_and_beside_it(strategy: str, tmp_path: Path) -> None:
    anonymize_file(exported("mask_in_every_layer", "torchscript").result.path, tmp_path / "bare.onnx")
    output = tmp_path / "annotated.onnx"
    found = annotate_case("mask_in_every_layer", tmp_path / "bare.onnx", output=output, strategy=strategy)
    assert found.path == output
    assert found.sidecar == tmp_path / "annotated_hierarchy.json"
    assert found.sidecar.is_file()
    assert found.hierarchy.nodes == hieronnx.load(output).nodes
    assert found.hierarchy.coverage() > 0.5
    assert hieronnx.compare(tmp_path / "bare.onnx", output).same
    onnx.checker.check_model(output, full_check=True)


def test_what_is_annotated_by_value_passes_validation(tmp_path: Path) -> None:
    path = exported("two_module_lists", "dynamo").result.path
    annotate_case("two_module_lists", path, output=tmp_path / "annotated.onnx")
    assert hieronnx.validate(tmp_path / "annotated.onnx").passed


def test_without_an_output_nothing_is_written(tmp_path: Path) -> None:
    path = exported("two_module_lists", "dynamo").result.path
    found = annotate_case("two_module_lists", path)
    assert found.path is found.sidecar is None
    assert found.hierarchy.coverage() == 1.0
    assert list(tmp_path.iterdir()) == []


def test_a_model_in_memory_can_be_annotated() -> None:
    proto = onnx.load(exported("two_module_lists", "dynamo").result.path)
    assert annotate_case("two_module_lists", proto).hierarchy.coverage() == 1.0


def test_a_file_can_be_annotated_in_place(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    anonymize_file(exported("two_module_lists", "torchscript").result.path, path)
    annotate_case("two_module_lists", path, output=path)
    assert hieronnx.load(path).coverage() == 1.0


def test_the_hierarchy_that_was_there_is_replaced(tmp_path: Path) -> None:
    path = exported("two_module_lists", "dynamo").result.path
    found = annotate_case("two_module_lists", path, output=tmp_path / "new.onnx")
    assert {node.evidence for node in hieronnx.load(path).nodes} == {"captured"}
    assert "captured" not in {node.evidence for node in found.hierarchy.nodes}
    assert b"captured" not in (tmp_path / "new.onnx").read_bytes()


def optimize(path: Path, folder: Path) -> Path:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return folder / "optimized.onnx"


class Conv(nn.Module):
    def __init__(self, channels: int, width: int, groups: int = 1) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, width, 3, padding=1, groups=groups), nn.BatchNorm2d(width)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()


class ConvNet(nn.Module):
    """Convolutions whose channels fill a block of eight, or do not, and one for each channel by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide, self.deep, self.head = Conv(3, 12), Conv(12, 16), Conv(16, 16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.wide(self.stem(x))
        return self.head((x + self.deep(x)).amax((2, 3)))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_conv_net_in_blocks_of_channels_is_annotated(strategy: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = ConvNet().eval(), torch.randn(2, 3, 12, 12)
    with quiet():
        torch.onnx.export(model, (x,), str(tmp_path / "model.onnx"), dynamo=False)
    made, bare = tmp_path / "made.onnx", tmp_path / "bare.onnx"
    transform("ort-all", tmp_path / "model.onnx", made, {})
    anonymize_file(made, bare)
    nodes = hieronnx.annotate(bare, model, (x,), strategy=strategy).hierarchy.nodes
    blocks = [node for node in nodes if (node.domain, node.op_type) == ("com.microsoft.nchwc", "Conv")]
    assert [node.scope.module.partition(".")[0] for node in blocks] == ["stem", "wide", "deep"]
    if strategy == "htp":
        assert [sorted(str(o) for o in node.origins) for node in blocks][1] == ["wide", "wide.conv", "wide.norm"]
        assert {node.evidence for node in nodes} <= {"value", "dataflow"}


def test_a_file_whose_rounding_changed_its_outputs_is_annotated(tmp_path: Path) -> None:
    """A mask of infinite numbers leaves the scores that it is added to no steps of eight bits."""

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            scores = 3 * self.query(x) @ self.key(x).transpose(1, 2) + (1 - mask) * torch.finfo().min
            return scores.softmax(-1) @ self.value(x)

    torch.manual_seed(0)
    model, x, mask = Attends().eval(), torch.randn(2, 5, 8), torch.ones(2, 1, 5)
    mask[0, 0, 3:] = 0
    with quiet():
        torch.onnx.export(model, (x, mask), str(tmp_path / "model.onnx"), dynamo=False, input_names=["x", "mask"])
    feeds = {"x": x.numpy(), "mask": mask.numpy()}
    transform("int8-operators", tmp_path / "model.onnx", tmp_path / "made.onnx", feeds)
    found = hieronnx.annotate(tmp_path / "made.onnx", model, (x, mask))
    assert found.outputs is not None
    assert found.outputs > 0.5
    products = [str(node.scope) for node in found.hierarchy.nodes if node.op_type == "QLinearMatMul"]
    assert sorted(products) == ["", "", "key", "query", "value"]


def simplify(path: Path, folder: Path) -> Path:
    import onnxsim

    simplified, _ = onnxsim.simplify(onnx.load(path))
    onnx.save(simplified, folder / "simplified.onnx")
    return folder / "simplified.onnx"


def halve(path: Path, folder: Path) -> Path:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), folder / "half.onnx")
    return folder / "half.onnx"


def quantize(path: Path, folder: Path) -> Path:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(onnx.load(path), folder / "int8.onnx")
    return folder / "int8.onnx"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("change", [optimize, simplify, halve, quantize])
@pytest.mark.parametrize("name", ["bert", "mask_in_every_layer"])
def test_what_tools_made_of_the_right_model_is_not_refused(
    name: str, change: Callable[[Path, Path], Path], strategy: str, tmp_path: Path
) -> None:
    changed = change(exported(name, "torchscript").result.path, tmp_path)
    anonymize_file(changed, tmp_path / "bare.onnx")
    found = annotate_case(name, tmp_path / "bare.onnx", strategy=strategy)
    assert found.hierarchy.coverage() > 0.5


def test_modules_that_are_not_used_are_no_reason_to_refuse() -> None:
    found = annotate_case("unused_modules", exported("unused_modules", "dynamo").result.path)
    assert found.outputs is not None
    assert found.outputs < 1e-5


def test_weights_of_modules_that_are_not_registered_are_no_reason_to_refuse() -> None:
    found = annotate_case("unregistered_module", exported("unregistered_module", "torchscript").result.path)
    assert found.hierarchy.coverage() > 0.5


class WithSoftmax(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.model(x), -1)


def test_a_file_that_computes_more_from_the_outputs_is_not_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    x = torch.randn(2, 8)
    with quiet():
        torch.onnx.export(WithSoftmax(model), (x,), str(tmp_path / "model.onnx"), dynamo=False)
    found = hieronnx.annotate(tmp_path / "model.onnx", model, (x,))
    assert [str(node.scope) for node in found.hierarchy.nodes][:3] == ["0", "1", "2"]


# -- files of another model -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [(change_weights, "none of its weights"), (add_layer, "outputs are"), (drop_layer, "weights")],
)
@pytest.mark.parametrize("name", ["bert", "gpt2", "two_module_lists"])
def test_another_model_is_refused_and_nothing_written(
    name: str, change: Callable[[nn.Module], object], told: str, tmp_path: Path
) -> None:
    path = exported(name, "torchscript").result.path
    with pytest.raises(MismatchError, match="is not of this model") as caught:
        annotate_case(name, path, change=change, output=tmp_path / "annotated.onnx")
    assert told in str(caught.value)
    assert "Nothing was written" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Adds(nn.Module):
    """A layer that adds little to what it is given, as many do before they are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + 1e-4 * self.down(torch.tanh(self.up(x)))


@pytest.mark.parametrize("exported", [3, 2], ids=["a layer more", "a layer less"])
def test_a_layer_that_adds_little_is_not_overlooked(exported: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers, x = [nn.Linear(8, 16), *(Adds() for _ in range(3))], torch.randn(4, 8)
    path, output = tmp_path / "model.onnx", tmp_path / "annotated.onnx"
    with quiet():
        torch.onnx.export(nn.Sequential(*layers[: exported + 1]).eval(), (x,), str(path), dynamo=False)
    right = hieronnx.annotate(path, nn.Sequential(*layers[: exported + 1]).eval(), (x,))
    assert right.hierarchy.coverage() == 1.0
    with pytest.raises(MismatchError):
        hieronnx.annotate(path, nn.Sequential(*layers[: 6 - exported]).eval(), (x,), output=output)
    assert not output.exists()


def test_modules_that_the_file_lacks_are_named() -> None:
    with pytest.raises(MismatchError) as caught:
        annotate_case("bert", exported("bert", "torchscript").result.path, change=add_layer)
    assert "it has nothing of encoder.layer.2." in str(caught.value)
    assert any(module.startswith("encoder.layer.2.") for module, _ in caught.value.unmatched)
    assert not any(module.startswith("encoder.layer.1.") for module, _ in caught.value.unmatched)


@pytest.mark.parametrize("change", [change_weights, drop_layer])
def test_without_a_run_weights_alone_tell_another_model(change: Callable[[nn.Module], object], tmp_path: Path) -> None:
    path = exported("bert", "dynamo").result.path
    with pytest.raises(MismatchError, match="of its weights"):
        annotate_case("bert", path, change=change, strategy="usage_based", output=tmp_path / "annotated.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_a_run_modules_of_which_nothing_is_there_are_told() -> None:
    found = annotate_case("bert", exported("bert", "dynamo").result.path, change=add_layer, strategy="usage_based")
    assert {str(call).rpartition("2.")[0] for call in found.unmatched} == {"encoder.layer."}


def test_a_model_in_training_mode_is_told_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    with quiet():
        torch.onnx.export(model, (torch.randn(2, 8),), str(tmp_path / "model.onnx"), dynamo=False)
    del model[3]
    with pytest.raises(MismatchError, match=r"call eval\(\) on it"):
        hieronnx.annotate(tmp_path / "model.onnx", model.train(), (torch.randn(2, 8),))


# -- what cannot be done --------------------------------------------------------------------------------------


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no such device\nand more")


def test_a_model_that_cannot_be_run_says_what_needs_no_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Fails().eval()
    with quiet():
        torch.onnx.export(nn.Sequential(model.linear), (torch.randn(2, 8),), str(tmp_path / "m.onnx"), dynamo=False)
    with pytest.raises(InputError, match=r"RuntimeError: no such device\).*usage_based"):
        hieronnx.annotate(tmp_path / "m.onnx", model, (torch.randn(2, 8),))
    found = hieronnx.annotate(tmp_path / "m.onnx", model, strategy="usage_based")
    assert str(found.hierarchy.nodes[0].scope) == "linear"


def test_inputs_that_do_not_fit_the_file_are_one_clear_line() -> None:
    model = CASES["two_module_lists"].build()
    path = exported("two_module_lists", "dynamo").result.path
    inputs = tuple(x[:1].repeat(7, *[1] * (x.ndim - 1)) for x in CASES["two_module_lists"].args())
    with pytest.raises(HieronnxError, match="the inputs given do not fit"):
        hieronnx.annotate(path, model, inputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "captured"}, "no strategy 'captured'; choose one of htp, usage_based"),
        ({"torch_nn": "Linaer"}, "no class in torch.nn 'Linaer'; did you mean 'Linear'"),
        ({"output": "nowhere/model.onnx"}, "no folder 'nowhere'"),
    ],
)
def test_options_are_checked_before_anything_runs(options: dict[str, str], message: str) -> None:
    with pytest.raises(HieronnxError, match=message):
        annotate_case("two_module_lists", exported("two_module_lists", "dynamo").result.path, **options)


def test_only_a_module_is_a_model() -> None:
    with pytest.raises(InputError, match=r"the reference is a int; it must be a torch\.nn\.Module"):
        hieronnx.annotate(exported("two_module_lists", "dynamo").result.path, 3)


def test_a_model_that_writes_to_its_buffers_has_them_as_before(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16)).eval(), torch.randn(4, 8)
    with quiet():
        torch.onnx.export(model, (x,), str(tmp_path / "model.onnx"), dynamo=False)
    before = {name: tensor.clone() for name, tensor in model.train().state_dict().items()}
    hieronnx.annotate(tmp_path / "model.onnx", model, (x,))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Bag(nn.Module):
    """Wants offsets that grow."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.linear = nn.EmbeddingBag(20, 8, mode="sum"), nn.Linear(8, 8)

    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        return torch.tanh(self.linear(self.bag(words, offsets)))


def test_inputs_that_cannot_be_others_are_used_alone_and_it_is_said(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = Bag().eval(), (torch.randint(0, 20, (9,)), torch.tensor([0, 2, 5]))
    with quiet():
        torch.onnx.export(model, inputs, str(tmp_path / "model.onnx"), dynamo=False)
    found = hieronnx.annotate(tmp_path / "model.onnx", model, inputs)
    assert found.input_sets == 1
    assert "on other inputs than those given they cannot be compared" in render_annotation(found)


def test_the_model_is_left_as_it_was() -> None:
    case = CASES["two_module_lists"]
    model = case.build().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hieronnx.annotate(exported("two_module_lists", "dynamo").result.path, model, case.args())
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# -- the command ----------------------------------------------------------------------------------------------

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, seed=0, layers=2):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

def other(): return Net(1)
def deeper(): return Net(0, 3)
"""
X = ("--input", "x=float32[2,8]")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net_to_annotate.py").write_text(NET, encoding="utf-8")
    assert run("export", "net_to_annotate.py:Net", "-o", "plain.onnx", "--no-embed", "--no-sidecar", *X).exit_code == 0
    return tmp_path


def test_the_command_annotates_and_reports(folder: Path) -> None:
    result = run("annotate", "plain.onnx", "--model", "net_to_annotate.py:Net", "-o", "annotated.onnx", *X)
    assert result.exit_code == 0, result.output
    assert "annotated_hierarchy.json" in result.stdout
    assert "4 of 4 nodes attributed (100.0 %)" in result.stdout
    assert "value" in result.stdout
    assert "next: hieronnx tree annotated.onnx" in result.stdout


def test_the_command_takes_inputs_from_the_file(folder: Path) -> None:
    result = run("annotate", "plain.onnx", "--model", "net_to_annotate.py:Net", "-o", "annotated.onnx")
    assert result.exit_code == 0, result.output
    assert "4 of 4 nodes attributed (100.0 %)" in result.stdout


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_command_reports_as_json(folder: Path, strategy: str) -> None:
    target = ("--model", "net_to_annotate.py:Net", "-o", "annotated.onnx", "--strategy", strategy, "--json")
    result = run("annotate", "plain.onnx", *target, *X)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["matched"], told["strategy"], told["agreement"]) == (True, strategy, 1.0)
    assert told["hierarchy"]["summary"]["nodes"] == 4
    assert told["unmatched"] == told["contradictions"] == []


@pytest.mark.parametrize(("target", "lacking"), [("other", ["layers.0", "layers.1"]), ("deeper", ["layers.2"])])
def test_the_command_exits_with_1_for_another_model(folder: Path, target: str, lacking: list[str]) -> None:
    before = set(folder.iterdir())
    command = ("annotate", "plain.onnx", "--model", f"net_to_annotate.py:{target}", "-o", "annotated.onnx", *X)
    result = run(*command)
    assert result.exit_code == 1
    assert "'plain.onnx' is not of this model" in result.stderr
    assert all(name in result.stderr for name in lacking)
    told = json.loads(run(*command, "--json").stdout)
    assert told["matched"] is False
    assert told["unmatched"] == [{"module": name, "call": 0} for name in lacking]
    assert {path for path in folder.iterdir() if path.name != "__pycache__"} == before - {folder / "__pycache__"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing.onnx", "--model", "net_to_annotate.py:Net", "-o", "a.onnx"), "no ONNX file at 'nothing.onnx'"),
        (("plain.onnx", "--model", "net_to_annotate.py:Nett", "-o", "a.onnx", *X), "did you mean 'Net'"),
        (
            ("plain.onnx", "--model", "net_to_annotate.py:Net", "-o", "a.onnx", "--input", "x=float32[2,9]"),
            "usage_based",
        ),
        (
            ("plain.onnx", "--model", "net_to_annotate.py:Net", "-o", "a.onnx", "--input", "x=float32[3,8]"),
            "do not fit",
        ),
        (("plain.onnx", "-o", "a.onnx"), "--model"),
    ],
)
def test_the_command_exits_with_2_and_one_line_for_errors(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run("annotate", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (folder / "a.onnx").exists()


def test_without_a_run_no_inputs_are_needed(folder: Path) -> None:
    target = ("--model", "net_to_annotate.py:Net", "-o", "annotated.onnx", "--strategy", "usage_based")
    result = run("annotate", "plain.onnx", *target)
    assert result.exit_code == 0, result.output
    assert "of the weights that the file holds, the model has 100.0%" in result.stdout


def run_without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.modules[{package!r}] = None\nfrom hieronnx.cli import main\nmain()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("package", "extra"), [("torch", "torch"), ("onnxruntime", "runtime")])
def test_a_missing_extra_names_the_pip_command(folder: Path, package: str, extra: str) -> None:
    target = ("--model", "net_to_annotate.py:Net", "-o", "annotated.onnx", *X)
    done = run_without(package, "annotate", "plain.onnx", *target)
    assert done.returncode == 2
    assert done.stderr == f"error: this needs {package}, which is not installed; run: pip install 'hieronnx[{extra}]'\n"


def test_usage_based_needs_no_onnx_runtime(folder: Path) -> None:
    target = ("--model", "net_to_annotate.py:Net", "-o", "annotated.onnx", "--strategy", "usage_based")
    done = run_without("onnxruntime", "annotate", "plain.onnx", *target)
    assert done.returncode == 0, done.stderr


# -- the report -------------------------------------------------------------------------------------------------


def test_the_report_lists_contradictions_and_calls_of_which_nothing_is_there() -> None:
    hierarchy = exported("two_module_lists", "dynamo").hierarchy
    node, calls = hierarchy.nodes[0], tuple(call.id for call in hierarchy.calls)
    contradiction = Disagreement(node, (("value", calls[1]), ("parameter", calls[2])))
    found = hieronnx.AnnotateResult(None, None, "htp", hierarchy, 0.975, 0.0123, calls[1:3], (contradiction,) * 21)
    text = render_annotation(found)
    assert "97.5% have values that the model computes too" in text
    assert "1.23% of their spread apart" in text
    assert "21 nodes of which two kinds of evidence say different things, the first 20:" in text
    assert text.count(f"value: {calls[1]}, parameter: {calls[2]}") == 20
    assert "2 calls of which nothing is in the file:\ncall" in text
    told = found.to_dict()
    assert told["unmatched"] == [{"module": call.module, "call": call.number} for call in calls[1:3]]
    assert len(told["contradictions"]) == 21
    assert told["contradictions"][0]["says"][1] == [
        "parameter",
        {"module": calls[2].module, "call": calls[2].number},
    ]


# -- the same strategies at export ------------------------------------------------------------------------------


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_export_can_be_attributed_by_another_strategy(strategy: str, exporter: str, tmp_path: Path) -> None:
    case = CASES["two_module_lists"]
    path = tmp_path / "model.onnx"
    with quiet():
        result = hieronnx.export(case.build(), case.args(), output=path, exporter=exporter, strategy=strategy)
    assert hieronnx.compare(path, exported("two_module_lists", exporter).result.path).same
    assert {node.evidence for node in result.hierarchy.nodes} <= {"value", "near", "parameter", "dataflow", "root"}
    assert result.hierarchy.model["exporter"] == exporter
    assert sorted(file.name for file in tmp_path.iterdir() if not file.name.endswith(".data")) == [
        "model.onnx",
        "model_hierarchy.json",
    ]


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.uniform_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Head(nn.Module):
    def __init__(self, tower: Tower, outputs: int) -> None:
        super().__init__()
        self.tower, self.last = tower, nn.Conv2d(4, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.tower(x))


class TwoHeads(nn.Module):
    """Two heads call one tower on the same input; the exporter computes it once."""

    def __init__(self) -> None:
        super().__init__()
        tower = Tower()
        self.first, self.second = Head(tower, 2), Head(tower, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x), self.second(x)


def test_what_is_computed_once_for_two_calls_is_that_of_the_first_as_in_an_export(tmp_path: Path) -> None:
    torch.manual_seed(7)
    model, x = TwoHeads().eval(), torch.randn(2, 3, 8, 8)
    with quiet():
        torch.onnx.export(model, (x,), tmp_path / "plain.onnx", dynamo=True)
        exported = hieronnx.export(model, (x,), tmp_path / "ours.onnx", exporter="dynamo").hierarchy
        annotated = hieronnx.annotate(tmp_path / "plain.onnx", model, (x,), output=tmp_path / "named.onnx").hierarchy
    scopes = {node.name: node.scope for node in exported.nodes}
    assert "first.tower.norm" in {scope.module for scope in scopes.values()}
    assert {node.name: node.scope for node in annotated.nodes} == scopes
