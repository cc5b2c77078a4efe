"""The checks' own run: that it counts calls right, sees what was made, and shares nothing with what it judges."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import support
from support.eager_oracle import EagerRun, Scope, run_model

SUPPORT = Path(support.__file__).parent
CHECKS = ["valuecheck", "boundaries", "carrycheck", "callrecords", "eager_oracle"]
JUDGED = {"hieronnx.capture", "hieronnx.attribute", "hieronnx.match", "hieronnx.runtime"}


def imported_by(file: Path) -> Iterator[str]:
    """Yield every module that a file imports, at its head or inside a function, and each name as if it were one."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file.name} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_behind(names: list[str]) -> set[Path]:
    """Return the files of `support` with these names, and those that they import from there."""
    found: set[Path] = set()
    waiting = [SUPPORT / f"{name}.py" for name in names]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            parts = [name.split(".") for name in imported_by(file) if name.startswith("support.")]
            waiting += [SUPPORT / f"{part[1]}.py" for part in parts]
    return found


def test_the_checks_share_nothing_with_what_they_judge() -> None:
    files = files_behind(CHECKS)
    assert {file.stem for file in files} >= set(CHECKS)
    names = {(file.name, name) for file in files for name in imported_by(file)}
    assert not {(file, name) for file, name in names if ".".join(name.split(".")[:2]) in JUDGED}
    assert not {name for file, name in names if file == "eager_oracle.py" and name.startswith(("hieronnx", "support"))}


# -- the numbering of calls, counted by hand -----------------------------------------------------------------


class Step(nn.Module):
    """Computes one thing that can be told apart."""

    def __init__(self, compute: Callable[[Tensor], Tensor] = torch.sin) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = Step()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.step(x)
        return x


class Shared(nn.Module):
    """One module under two names, the first of them further down: it has the name that `named_modules` gives first."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Sequential(Step())
        self.alias = self.outer[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.alias(self.outer(self.alias(x)))


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.upper, self.other = Loop(), Loop()

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(self.other(self.upper(x)).cos())


class CallsSibling(nn.Module):
    """The first child calls the second, which it holds without registering it."""

    class Caller(nn.Module):
        def __init__(self, sibling: nn.Module) -> None:
            super().__init__()
            self.held = [sibling]

        def forward(self, x: Tensor) -> Tensor:
            return self.held[0](x).cos()

    def __init__(self) -> None:
        super().__init__()
        self.step = Step()
        self.caller = self.Caller(self.step)

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self.caller(x))


class CallsItself(nn.Module):
    class Down(nn.Module):
        def forward(self, x: Tensor, depth: int) -> Tensor:
            return self(x.sin(), depth - 1).cos() if depth else x.tanh()

    def __init__(self) -> None:
        super().__init__()
        self.down = self.Down()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(x, 2)


class Catches(nn.Module):
    """A call raises two calls deep, its caller's caller goes on; then the module is called once more."""

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sin().sum() > 0:
                raise ValueError
            return x.tanh()

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(self.Fails())

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.block(x)
        except ValueError:
            return self.block(-x.cos()).exp()


class Unregistered(nn.Module):
    """What the model does not register has no path, so its operations are its caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [Step()]

    def forward(self, x: Tensor) -> Tensor:
        return self.held[0](x)


def calls_of(run: EagerRun) -> list[tuple[Scope, Scope | None]]:
    return [(call.scope, call.parent) for call in run.calls.values()]


def operations_of(run: EagerRun) -> list[tuple[str, Scope]]:
    """Return what the models here compute, with the calls."""
    names = {f"aten.{name}.default": name for name in ("sin", "cos", "tanh", "exp")}
    return [(names[op.name], op.scope) for op in run.operations if op.name in names]


ROOT: Scope = ("", 0)


@pytest.mark.parametrize(
    ("model", "calls", "operations"),
    [
        (
            Loop(),
            [(ROOT, None), (("step", 0), ROOT), (("step", 1), ROOT), (("step", 2), ROOT)],
            [("sin", ("step", 0)), ("sin", ("step", 1)), ("sin", ("step", 2))],
        ),
        (
            Shared(),
            [
                (ROOT, None),
                (("outer.0", 0), ROOT),
                (("outer", 0), ROOT),
                (("outer.0", 1), ("outer", 0)),
                (("outer.0", 2), ROOT),
            ],
            [("sin", ("outer.0", 0)), ("sin", ("outer.0", 1)), ("sin", ("outer.0", 2))],
        ),
        (
            Nested(),
            [
                (ROOT, None),
                (("upper", 0), ROOT),
                *((("upper.step", number), ("upper", 0)) for number in range(3)),
                (("other", 0), ROOT),
                *((("other.step", number), ("other", 0)) for number in range(3)),
                (("upper", 1), ROOT),
                *((("upper.step", number), ("upper", 1)) for number in range(3, 6)),
            ],
            [
                *(("sin", ("upper.step", number)) for number in range(3)),
                *(("sin", ("other.step", number)) for number in range(3)),
                ("cos", ROOT),
                *(("sin", ("upper.step", number)) for number in range(3, 6)),
            ],
        ),
        (
            CallsSibling(),
            [(ROOT, None), (("caller", 0), ROOT), (("step", 0), ("caller", 0)), (("step", 1), ROOT)],
            [("sin", ("step", 0)), ("cos", ("caller", 0)), ("sin", ("step", 1))],
        ),
        (
            CallsItself(),
            [(ROOT, None), (("down", 0), ROOT), (("down", 1), ("down", 0)), (("down", 2), ("down", 1))],
            [
                ("sin", ("down", 0)),
                ("sin", ("down", 1)),
                ("tanh", ("down", 2)),
                ("cos", ("down", 1)),
                ("cos", ("down", 0)),
            ],
        ),
        (
            Catches(),
            [
                (ROOT, None),
                (("block", 0), ROOT),
                (("block.0", 0), ("block", 0)),
                (("block", 1), ROOT),
                (("block.0", 1), ("block", 1)),
            ],
            [
                ("sin", ("block.0", 0)),
                ("cos", ROOT),
                ("sin", ("block.0", 1)),
                ("tanh", ("block.0", 1)),
                ("exp", ROOT),
            ],
        ),
        (Unregistered(), [(ROOT, None)], [("sin", ROOT)]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_calls_are_numbered_as_by_hand(
    model: nn.Module, calls: list[tuple[Scope, Scope | None]], operations: list[tuple[str, Scope]]
) -> None:
    run = run_model(model, (torch.tensor([0.5, 1.0, 1.2]),))
    assert calls_of(run) == calls
    assert operations_of(run) == operations


def test_a_call_that_raised_returned_nothing() -> None:
    run = run_model(Catches(), (torch.ones(3),))
    assert [call.returned for call in run.calls.values() if call.scope[1] == 0 and call.parent] == [(), ()]
    assert run.calls["block", 1].outputs


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = Step(torch.sin), Step(torch.cos)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.up(x).tanh(), lambda x: self.down(x), (x,))


@pytest.mark.parametrize(("sign", "seen"), [(1, [("sin", ("up", 0)), ("tanh", ROOT)]), (-1, [("cos", ("down", 0))])])
def test_the_branch_that_is_taken_is_seen(sign: int, seen: list[tuple[str, Scope]]) -> None:
    assert operations_of(run_model(Branches(), (sign * torch.ones(3),))) == seen


def test_a_compiled_module_is_seen_call_by_call() -> None:
    run = run_model(nn.Sequential(torch.compile(Loop(), fullgraph=True)), (torch.ones(3),))
    assert operations_of(run) == [("sin", ("0._orig_mod.step", number)) for number in range(3)]


# -- the tensors -----------------------------------------------------------------------------------------------


class WritesToPart(nn.Module):
    """The child writes to a row of what the root holds."""

    class Child(nn.Module):
        def forward(self, row: Tensor) -> None:
            row.mul_(2.0)

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()

    def forward(self, x: Tensor) -> Tensor:
        whole = x + 1.0
        self.child(whole[0])
        whole.add_(1.0)
        return whole


def test_what_shares_memory_with_a_written_tensor_has_new_values() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    run = run_model(WritesToPart(), (x,))
    written = [op for op in run.operations if op.name.startswith("aten.mul_")]
    assert [op.scope for op in written] == [("child", 0)]
    values = [tensor.tolist() for tensor in written[0].outputs]
    assert [4.0, 6.0] in values
    assert [[4.0, 6.0], [4.0, 5.0]] in values
    assert run.calls["child", 0].inputs[0].tolist() == [2.0, 3.0]
    assert run.outputs[0].tolist() == [[5.0, 7.0], [5.0, 6.0]]
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = Step()
        self.step.register_forward_pre_hook(lambda module, args: (args[0].cos(),))
        self.step.register_forward_hook(lambda module, args, result: result.exp())

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x).tanh()


def test_what_hooks_do_belongs_to_the_call() -> None:
    run = run_model(Hooked(), (torch.ones(3),))
    step: Scope = ("step", 0)
    assert operations_of(run) == [("cos", step), ("sin", step), ("exp", step), ("tanh", ROOT)]
    assert run.calls[step].inputs[0].tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(run.calls[step].outputs[0], torch.ones(3).cos().sin().exp())


@pytest.mark.parametrize("model", [Hooked(), nn.BatchNorm1d(2)], ids=["hooks", "buffers"])
def test_nothing_is_left_behind(model: nn.Module) -> None:
    def state() -> tuple[object, ...]:
        hooks = [(list(m._forward_hooks), list(m._forward_pre_hooks)) for m in model.modules()]
        buffers = [buffer.tolist() for buffer in model.buffers()]
        switches = (torch.backends.mha.get_fastpath_enabled(), torch.is_grad_enabled())
        return hooks, buffers, switches, torch.random.get_rng_state().tolist()

    before = state()
    run_model(model, (torch.tensor([[1.0, 2.0], [3.0, 5.0]]),))
    assert state() == before
    with pytest.raises(TypeError):
        run_model(model, (torch.ones(3), "too many"))
    assert state() == before
