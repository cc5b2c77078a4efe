"""A failed export leaves nothing behind: no file, no hook, no changed model; and says why in one line."""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import resource
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import hieronnx
from hieronnx.capture import guard, private_torch
from hieronnx.errors import ExportError, HieronnxError, InputError
from hieronnx.files.opening import sidecar_path
from hieronnx.tools.optimize import OPTIMIZERS
from hieronnx.tools.quantize import QUANTIZERS
from support.exports import quiet

BOTH = ["dynamo", "torchscript"]
ALL = ["auto", *BOTH]
# Before torch 2.13, torch.export itself leaves one of these behind where it fails.
LEFT_BY_TORCH = {"_global_buffer_registration_hooks"} if torch.__version__ < (2, 13) else set()
GLOBAL_HOOKS = [
    name
    for name in vars(nn.modules.module)
    if name.startswith("_global_") and name.endswith("_hooks") and name not in LEFT_BY_TORCH
]
MODULE_HOOKS = [name for name in vars(nn.Module()) if "_hooks" in name]


class Net(nn.Module):
    """Has dropout, running statistics, a frozen weight, a half weight, and children in different modes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.table = nn.Parameter(torch.ones(2, dtype=torch.float16))
        self.train()
        self.frozen.eval()

    def forward(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
        x = self.dropout(self.norm(self.linear(x)))
        x = self.finish(self.frozen(x + torch.rand(4)))
        return x if gain is None else x * gain

    def finish(self, x: Tensor) -> Tensor:
        return x


class Raises(Net):
    def finish(self, x: Tensor) -> Tensor:
        raise ValueError("the model's own words\nand more of them\n\tin many lines")


class Interrupted(Net):
    def finish(self, x: Tensor) -> Tensor:
        raise KeyboardInterrupt


class ReadsFile(Net):
    def finish(self, x: Tensor) -> Tensor:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "vocabulary.txt")


class BranchesOnData(nn.Module):
    """Cannot be exported by torch.export; torch.jit.trace takes the branch that it sees."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) if bool(x.sum() > 0) else x


class Unexportable(nn.Module):
    """Fails in both: a branch on data for torch.export, an operator that the TorchScript exporter does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fftn(x).real if bool(x.sum() > 0) else x


class Large(nn.Module):
    """Has more weights than the disk will take."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(400, 400)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def inputs(width: int = 4) -> tuple[Tensor, ...]:
    return (torch.ones(2, width),)


# -- what must not change -----------------------------------------------------------------------------------------


def state_of(model: nn.Module) -> dict[str, Any]:
    """Return all that an export could leave behind in the model or in the process, comparable by `==`."""
    random_states = [torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())]
    modules = {path: describe(module) for path, module in model.named_modules()}
    utils = [f"{private_torch.TORCHSCRIPT}.{name}" for name in ("utils", "onnx_proto_utils")]
    patched = [guard.find_holder(owner) for owner in (private_torch.DYNAMO, private_torch.TRACER, *utils)]
    return {
        "random": random_states,
        "modules": modules,
        "tensors": {name: describe_tensor(t) for name, t in (*model.named_parameters(), *model.named_buffers())},
        "global hooks": {name: list(getattr(nn.modules.module, name)) for name in GLOBAL_HOOKS},
        "call": nn.Module.__call__,
        "torch": [{k: v for k, v in vars(owner).items() if not k.startswith("__")} for owner in patched],
        "passes": {name: value for name, value in vars(torch._C).items() if name.startswith("_jit_")},
        "tracing": [torch._C._get_tracing_state(), torch.jit._trace._trace_module_map, torch.onnx.is_in_onnx_export()],
        "modes": [torch.is_grad_enabled(), torch.get_default_dtype()],
        "warnings": list(warnings.filters),
    }


def describe(module: nn.Module) -> dict[str, Any]:
    hooks = {
        name: list(getattr(module, name).items()) for name in MODULE_HOOKS if hasattr(getattr(module, name), "items")
    }
    return {"attributes": list(vars(module)), "training": module.training, "hooks": hooks, "id": id(module)}


def describe_tensor(tensor: Tensor) -> tuple[object, ...]:
    values = tensor.detach().double().flatten().tolist()
    return id(tensor), tensor.dtype, tensor.device, tensor.requires_grad, tensor.grad is None, values


def test_the_state_sees_what_an_export_could_leave_behind() -> None:
    def after(change: Callable[[Net], object]) -> bool:
        model = Net()
        before = state_of(model)
        change(model)
        return state_of(model) != before

    assert not after(lambda model: None)
    assert len(GLOBAL_HOOKS) >= 4
    assert len(MODULE_HOOKS) >= 4
    assert after(lambda model: model.eval())
    assert after(lambda model: model.frozen.train())
    assert after(lambda model: model.linear.register_forward_hook(print))
    assert after(lambda model: setattr(model, "forward", model.forward))
    assert after(lambda model: model.half())
    assert after(lambda model: model.linear.requires_grad_(False))
    assert after(lambda model: model.norm(torch.ones(2, 4)))
    assert after(lambda model: torch.rand(1))


@contextmanager
def nothing_left(model: nn.Module, folder: Path) -> Iterator[None]:
    """Check that the folder, the model and the process are afterwards as they were."""
    before, files = state_of(model), files_in(folder)
    yield
    assert files_in(folder) == files
    after = state_of(model)
    assert [key for key in before if after[key] != before[key]] == []


def files_in(folder: Path) -> dict[str, tuple[bytes | None, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


def export(model: nn.Module, output: Path, *args: Tensor, **options: Any) -> hieronnx.ExportResult:
    with quiet():
        return hieronnx.export(model, args or inputs(), output=output, **options)


def expect_failure(
    model: nn.Module, output: Path, *args: Tensor, error: type[HieronnxError] = ExportError, **options: Any
) -> str:
    """Export, which must fail with one line and nothing left; return that line."""
    with nothing_left(model, output.parent), pytest.raises(HieronnxError) as caught:
        export(model, output, *args, **options)
    assert isinstance(caught.value, error)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- when torch fails ---------------------------------------------------------------------------------------------


class WritesBuffers(nn.Module):
    """Writes buffers in every way that there is, then fails or not."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.fails = fails
        for name in ("added", "replaced", "behind"):
            self.register_buffer(name, torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.added.add_(1)
        self.behind.data.add_(x.detach().sum())
        self.replaced = self.replaced + 1
        y = x + self.added + self.replaced
        return torch.fft.fftn(y).real if self.fails and bool(x.sum() > 0) else y


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("exporter", ALL)
def test_buffers_are_as_they_were(exporter: str, fails: bool, tmp_path: Path) -> None:
    model = WritesBuffers(fails=fails).eval()
    before = {name: (id(buffer), buffer.tolist()) for name, buffer in model.named_buffers()}
    try:
        export(model, tmp_path / "m.onnx", exporter=exporter)
    except ExportError:
        assert fails or exporter == "dynamo"
    else:
        assert not fails
    assert {name: (id(buffer), buffer.tolist()) for name, buffer in model.named_buffers()} == before


@pytest.mark.parametrize("exporter", ALL)
def test_a_forward_that_raises_leaves_nothing_behind(exporter: str, tmp_path: Path) -> None:
    message = expect_failure(Raises(), tmp_path / "m.onnx", exporter=exporter)
    assert "ValueError: the model's own words" in message
    assert "and more of them" not in message


@pytest.mark.parametrize("exporter", BOTH)
def test_a_forward_that_raises_on_inputs_by_keyword_is_put_back(exporter: str, tmp_path: Path) -> None:
    model = Raises()
    expect_failure(model, tmp_path / "m.onnx", exporter=exporter, kwargs={"gain": torch.ones(1)})
    assert "forward" not in vars(model)


def test_a_forward_of_the_instances_own_is_put_back(tmp_path: Path) -> None:
    model = Raises()
    own = model.forward
    model.forward = own
    expect_failure(model, tmp_path / "m.onnx", exporter="torchscript", kwargs={"gain": torch.ones(1)})
    assert vars(model)["forward"] is own


@pytest.mark.parametrize("exporter", BOTH)
def test_an_export_that_torch_refuses_leaves_nothing_behind(exporter: str, tmp_path: Path) -> None:
    message = expect_failure(Unexportable(), tmp_path / "m.onnx", exporter=exporter)
    assert message.startswith(f"torch could not export the model ({exporter}: ")
    assert f"exporter='{({*BOTH} - {exporter}).pop()}'" in message


def test_when_both_routes_fail_both_causes_are_named(tmp_path: Path) -> None:
    message = expect_failure(Unexportable(), tmp_path / "m.onnx", exporter="auto")
    assert message.startswith("torch could not export the model (dynamo: ")
    assert "; torchscript: it has no ONNX for the operator aten::fft_fftn); write the model without " in message


class Unequal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"not with {len(x)}")


@pytest.mark.parametrize("exporter", ALL)
def test_a_model_that_cannot_run_by_itself_is_told(exporter: str, tmp_path: Path) -> None:
    """Another exporter would be of no use."""
    message = expect_failure(Unequal(), tmp_path / "m.onnx", exporter=exporter)
    assert message.startswith("the model itself cannot run on these inputs (ValueError: not with ")
    assert "try" not in message


class OnlyUnderAnExporter(nn.Module):
    """Runs by itself, and with one number for a channel in eval mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        if torch.onnx.is_in_onnx_export() or torch.compiler.is_compiling():
            raise RuntimeError("not for an exporter")
        return self.norm(x[:1])


@pytest.mark.parametrize(("exporter", "training"), [("dynamo", False), ("torchscript", False), ("torchscript", True)])
def test_a_model_that_runs_by_itself_is_not_to_blame(exporter: str, training: bool, tmp_path: Path) -> None:
    model = OnlyUnderAnExporter().train(training)
    counted = model.norm.num_batches_tracked.item()
    message = expect_failure(model, tmp_path / "m.onnx", exporter=exporter)
    assert message.startswith("torch could not export the model (")
    assert model.training is training
    assert model.norm.num_batches_tracked.item() == counted


@pytest.mark.parametrize("exporter", BOTH)
def test_wrong_inputs_leave_nothing_behind(exporter: str, tmp_path: Path) -> None:
    message = expect_failure(Net(), tmp_path / "m.onnx", torch.ones(2, 3), exporter=exporter)
    assert message.startswith("the model itself cannot run on these inputs (RuntimeError: ")


@pytest.mark.parametrize("exporter", BOTH)
def test_a_model_with_hooks_keeps_them_and_gets_no_others(exporter: str, tmp_path: Path) -> None:
    model = Raises()
    model.linear.register_forward_hook(lambda module, args, output: output + 1)
    model.norm.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model.register_forward_hook(lambda module, args, kwargs, output: output, with_kwargs=True)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        expect_failure(model, tmp_path / "m.onnx", exporter=exporter)
    finally:
        handle.remove()


@pytest.mark.parametrize("exporter", BOTH)
def test_a_hook_that_raises_leaves_nothing_behind(exporter: str, tmp_path: Path) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("not through me")

    model = Net()
    model.frozen.register_forward_hook(refuse)
    assert "not through me" in expect_failure(model, tmp_path / "m.onnx", exporter=exporter)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("exporter", BOTH)
def test_a_model_stays_in_its_mode_also_when_the_export_succeeds(exporter: str, training: bool, tmp_path: Path) -> None:
    model = Net()
    model.linear.train(training)
    before = state_of(model)
    export(model, tmp_path / "m.onnx", exporter=exporter)
    after = state_of(model)
    assert [key for key in before if after[key] != before[key]] == []


def test_an_interruption_is_passed_on_and_leaves_nothing_behind(tmp_path: Path) -> None:
    model = Interrupted()
    with nothing_left(model, tmp_path), pytest.raises(KeyboardInterrupt):
        export(model, tmp_path / "m.onnx", exporter="torchscript")


@pytest.mark.parametrize("stage", ["exporting with torchscript", "writing"])
def test_a_progress_callback_that_raises_leaves_nothing_behind(stage: str, tmp_path: Path) -> None:
    def report(name: str) -> None:
        if name == stage:
            raise RuntimeError("enough")

    model = Net()
    with nothing_left(model, tmp_path), pytest.raises(RuntimeError, match="enough"):
        export(model, tmp_path / "m.onnx", exporter="torchscript", progress=report)


@pytest.mark.parametrize("exporter", BOTH)
def test_a_failure_of_our_own_leaves_nothing_behind(
    exporter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("hieronnx.attribute.captured.attribute_captured", fail)
    model = Net()
    with nothing_left(model, tmp_path), pytest.raises((AssertionError, ExportError), match="a bug"):
        export(model, tmp_path / "m.onnx", exporter=exporter)


@pytest.mark.parametrize("exporter", ALL)
def test_files_that_were_there_stay_as_they_were(exporter: str, tmp_path: Path) -> None:
    for name in ("m.onnx", "m.onnx.data", "m_hierarchy.json"):
        (tmp_path / name).write_text("from before")
    expect_failure(Raises(), tmp_path / "m.onnx", exporter=exporter)


def test_an_os_error_of_the_model_is_not_said_to_be_one_of_the_disk(tmp_path: Path) -> None:
    message = expect_failure(ReadsFile(), tmp_path / "m.onnx", exporter="torchscript")
    assert "vocabulary.txt" in message
    assert "cannot write" not in message


# -- when the files cannot be written -----------------------------------------------------------------------------


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    model = Net()
    with nothing_left(model, tmp_path), pytest.raises(ExportError, match=r"no folder '.*none' to write 'm\.onnx'"):
        export(model, tmp_path / "none" / "m.onnx")


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    model = Net()
    with nothing_left(model, tmp_path), pytest.raises(ExportError, match=r"no folder '.*file' to write 'm\.onnx'"):
        export(model, tmp_path / "file" / "m.onnx")


def test_a_folder_as_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").mkdir()
    assert "is a folder; give the name of a file in it" in expect_failure(Net(), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exporter": "onnx"}, "no exporter 'onnx'; choose one of auto, dynamo, torchscript"),
        ({"strategy": "guess"}, "no strategy 'guess'"),
        ({"torch_nn": "1,2"}, "--torch-nn: '1' is not a class name"),
        ({"dynamo": True}, "'dynamo' is set by hieronnx itself"),
    ],
)
def test_options_that_do_not_exist_are_refused_before_anything_runs(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in expect_failure(Interrupted(), tmp_path / "m.onnx", error=InputError, **options)


def test_a_folder_that_takes_no_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", "somewhere")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    message = expect_failure(Net(), tmp_path / "m.onnx")
    assert message == f"cannot write into '{tmp_path}': Permission denied"


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Let no file grow beyond a size, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("exporter", ALL)
def test_a_full_disk_leaves_nothing_behind(exporter: str, tmp_path: Path) -> None:
    with files_limited_to(200_000):
        message = expect_failure(Large(), tmp_path / "m.onnx", *inputs(400), exporter=exporter)
    assert message.startswith(f"cannot write '{tmp_path / 'm.onnx'}': ")
    assert "File too large" in message


def fail_replacing(monkeypatch: pytest.MonkeyPatch, folder: Path, pattern: str) -> None:
    """Let moving a file of such a name into this folder fail."""
    replace = os.replace

    def fail(source: Any, destination: Any) -> None:
        if Path(destination).parent == folder and Path(destination).match(pattern):
            raise OSError(errno.ENOSPC, "No space left on device", str(destination))
        replace(source, destination)

    monkeypatch.setattr("os.replace", fail)


@pytest.mark.parametrize(
    "name",
    ["m*.onnx.data", "m.onnx", "m_hierarchy.json"],
)
@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
def test_files_that_cannot_be_moved_into_place_leave_nothing_behind(
    name: str, existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if existing:
        for before in ("m.onnx", "m.onnx.data", "m_hierarchy.json"):
            (tmp_path / before).write_text('{"format_version": "from before"}')
    fail_replacing(monkeypatch, tmp_path, name)
    message = expect_failure(Large(), tmp_path / "m.onnx", *inputs(400), exporter="dynamo")
    assert "No space left on device" in message


@pytest.mark.parametrize("exporter", BOTH)
def test_a_success_leaves_the_files_of_the_export_and_no_others(exporter: str, tmp_path: Path) -> None:
    result = export(Net(), tmp_path / "m.onnx", exporter=exporter)
    names = {"m.onnx", "m_hierarchy.json"}
    assert names <= set(files_in(tmp_path)) <= names | {"m.onnx.data"}
    assert (result.path, result.sidecar) == (tmp_path / "m.onnx", sidecar_path(tmp_path / "m.onnx"))


# -- falling back -------------------------------------------------------------------------------------------------


def test_auto_falls_back_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stages: list[str] = []
    with caplog.at_level(logging.WARNING, logger="hieronnx"):
        result = export(BranchesOnData(), tmp_path / "m.onnx", progress=stages.append)
    assert result.exporter == "torchscript"
    assert result.fallback
    assert "\n" not in result.fallback
    assert stages == ["exporting with dynamo", "exporting with torchscript", "writing", "reading back"]
    (record,) = [record for record in caplog.records if record.name == "hieronnx"]
    assert record.getMessage() == f"dynamo could not export the model ({result.fallback}); trying TorchScript"
    assert set(files_in(tmp_path)) == {"m.onnx", "m_hierarchy.json"}  # nothing of the first attempt
    assert {node.op_type for node in result.hierarchy.nodes} == {"Relu"}


def test_auto_without_need_does_not_fall_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hieronnx"):
        result = export(nn.Linear(4, 4).eval(), tmp_path / "m.onnx")
    assert (result.exporter, result.fallback) == ("dynamo", None)
    assert not [record for record in caplog.records if record.name == "hieronnx"]


# -- threads ------------------------------------------------------------------------------------------------------


class Twice(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(self.cell(x))


def test_exports_in_two_threads_both_succeed(tmp_path: Path) -> None:
    jobs = [(nn.Sigmoid(), "torchscript"), (nn.Tanh(), "torchscript"), (nn.Sigmoid(), "dynamo"), (nn.Tanh(), "dynamo")]

    def run(number: int) -> hieronnx.ExportResult:
        cell, exporter = jobs[number]
        return hieronnx.export(Twice(cell), inputs(), output=tmp_path / f"{number}.onnx", exporter=exporter)

    model = Net()
    before = state_of(model)
    with quiet(), ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, range(len(jobs))))
    for (cell, exporter), result in zip(jobs, results, strict=True):
        assert result.exporter == exporter
        assert [str(call.id) for call in result.hierarchy.calls] == ["", "cell", "cell@1"]
        assert {(n.op_type, str(n.scope)) for n in result.hierarchy.nodes} == {
            (type(cell).__name__, "cell"),
            (type(cell).__name__, "cell@1"),
        }
    after = state_of(model)
    assert [key for key in before if after[key] != before[key]] == []


def test_a_full_disk_is_said_of_the_file_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", fail)  # how the sidecar is written
    with pytest.raises(ExportError, match=re.escape(f"cannot write '{tmp_path / 'm.onnx'}': No space left")):
        hieronnx.export(nn.Linear(2, 2).eval(), (torch.randn(1, 2),), tmp_path / "m.onnx", exporter="torchscript")
    assert list(tmp_path.iterdir()) == []


# -- weights that are missing -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("without") / "net.onnx"
    with quiet():
        hieronnx.export(nn.Sequential(nn.Linear(64, 64)).eval(), (torch.ones(1, 64),), path, exporter="dynamo")
    path.with_name("net.onnx.data").unlink()
    return path


@pytest.mark.parametrize("tool", [*OPTIMIZERS, *QUANTIZERS])
def test_missing_weights_are_named_before_a_tool_runs(tool: str, without_weights: Path, tmp_path: Path) -> None:
    verb = hieronnx.optimize if tool in OPTIMIZERS else hieronnx.quantize
    options = {"random_calibration": 1} if tool == "static" else {}
    with pytest.raises(HieronnxError) as raised:
        verb(without_weights, output=tmp_path / "made.onnx", tool=tool, **options)
    data = without_weights.with_name("net.onnx.data")
    assert str(raised.value) == f"the weights of '{without_weights}' should be in '{data}'; put the file there"
    assert list(tmp_path.iterdir()) == []


def test_missing_weights_are_named_by_whatever_reads_them(without_weights: Path, tmp_path: Path) -> None:
    model, inputs, output = nn.Sequential(nn.Linear(64, 64)), (torch.ones(1, 64),), tmp_path / "made.onnx"
    for attempt in (
        lambda: hieronnx.annotate(without_weights, model, inputs, output=output),
        lambda: hieronnx.annotate(without_weights, model, strategy="usage_based"),
        lambda: hieronnx.extract(without_weights, "0", output=output),
        lambda: hieronnx.carry(without_weights, without_weights, output=output),
        lambda: hieronnx.carry(without_weights, without_weights, by_value=True),
        lambda: hieronnx.compare(without_weights, without_weights, values=True),
    ):
        with pytest.raises(HieronnxError, match=r"net\.onnx\.data'"):
            attempt()
    assert list(tmp_path.iterdir()) == []


def test_a_model_in_memory_whose_weights_are_in_a_file_is_told_to_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with quiet():
        hieronnx.export(nn.Sequential(nn.Linear(64, 64)).eval(), (torch.ones(1, 64),), path, exporter="dynamo")
    with pytest.raises(InputError, match="save it, and give the path instead"):
        hieronnx.quantize(onnx.load(path, load_external_data=False), output=tmp_path / "made.onnx", tool="dynamic")


class Hidden(nn.Module):
    """A model in which an interrupt comes out as another error, as torch lets it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise AttributeError("no such thing") from error


def test_an_interrupt_that_comes_out_as_another_error_stops_the_export(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        export(Hidden(), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


# -- operators that an exporter does not have ---------------------------------------------------------------------


class Samples(nn.Module):
    """Needs opset 16 in the TorchScript exporter."""

    def forward(self, x: Tensor) -> Tensor:
        grid = torch.zeros(1, 4, 4, 2)
        return nn.functional.grid_sample(x[None, None], grid, align_corners=False)


class Eigenvalues(nn.Module):
    """Has an operator that neither exporter knows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(x @ x.T)


def test_an_opset_that_has_the_operator_is_named_and_has_it(tmp_path: Path) -> None:
    message = expect_failure(Samples(), tmp_path / "m.onnx", exporter="torchscript", opset_version=11)
    assert message.endswith("try --exporter torchscript --opset 16 (opset_version=16)")
    assert export(Samples(), tmp_path / "m.onnx", exporter="torchscript", opset_version=16).path.is_file()


class Unknown(nn.Module):
    """Uses an operator that the TorchScript exporter has, in a way that it has not."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.embedding(x[0].long(), x, padding_idx=0, scale_grad_by_freq=True)


def test_what_torch_says_of_an_operator_is_told_without_its_graph(tmp_path: Path) -> None:
    model = Unknown().train()
    message = expect_failure(model, tmp_path / "m.onnx", exporter="torchscript", train=True)
    assert "Unsupported: ONNX export of embedding with scale_grad_by_freq=True" in message
    assert "Caused by" not in message
    assert "try --exporter dynamo" in message


@pytest.mark.parametrize("exporter", BOTH)
def test_of_one_exporter_the_other_is_named(exporter: str, tmp_path: Path) -> None:
    other = ({*BOTH} - {exporter}).pop()
    message = expect_failure(Eigenvalues(), tmp_path / "m.onnx", exporter=exporter)
    assert f"({exporter}: it has no ONNX for the operator " in message
    assert f"try --exporter {other} (exporter='{other}'); if that has none either, write the model without" in message


def test_what_neither_exporter_has_is_to_be_written_otherwise_or_translated(tmp_path: Path) -> None:
    message = expect_failure(Eigenvalues(), tmp_path / "m.onnx")
    assert "write the model without aten._linalg_eigh and aten::linalg_eigvalsh, or translate it" in message
    assert "Failure message" not in message


def test_a_translation_makes_the_export_work(tmp_path: Path) -> None:
    from onnxscript import opset18

    def translate(matrix: Any, UPLO: str = "L", compute_v: bool = True) -> Any:  # noqa: N803  torch's name
        diagonal = opset18.ReduceSum(matrix, opset18.Constant(value_ints=[1]), keepdims=0)
        return diagonal, opset18.Identity(matrix)

    table = {torch.ops.aten._linalg_eigh.default: translate}
    result = export(Eigenvalues(), tmp_path / "m.onnx", exporter="dynamo", custom_translation_table=table, check=False)
    assert "ReduceSum" in {node.op_type for node in result.hierarchy.nodes}


# -- inputs that forward does not take ----------------------------------------------------------------------------


class TwoInputs(nn.Module):
    def forward(self, left: Tensor, right: Tensor, *, scale: float = 1.0) -> Tensor:
        return (left + right) * scale


@pytest.mark.parametrize("exporter", ALL)
def test_a_missing_argument_is_named_before_torch_runs(exporter: str, tmp_path: Path) -> None:
    message = expect_failure(TwoInputs(), tmp_path / "m.onnx", exporter=exporter, error=InputError)
    assert message.startswith("TwoInputs.forward must be given right, too; pass --input 'right=DTYPE[SHAPE]', or ")
    assert "kwargs={'right': …}" in message


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"right": torch.ones(2, 4), "scael": 2.0}, "takes no input 'scael'; did you mean 'scale'?"),
        ({"left": torch.ones(2, 4), "right": torch.ones(2, 4)}, "multiple values for argument 'left'"),
    ],
)
def test_an_argument_too_many_is_named(kwargs: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert words in expect_failure(TwoInputs(), tmp_path / "m.onnx", error=InputError, kwargs=kwargs)


class Doubles(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right


def test_a_hook_may_give_what_is_missing(tmp_path: Path) -> None:
    model = Doubles()
    model.register_forward_pre_hook(lambda module, args: (args[0], args[0]) if len(args) == 1 else args)
    assert export(model, tmp_path / "m.onnx", exporter="torchscript").hierarchy.nodes
