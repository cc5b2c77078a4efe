"""The eager log: which call each operation ran in, and nothing left behind."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

from hieronnx.capture.eager import CallRecord, EagerLog, log_eager
from support.zoo import case


def log_case(name: str) -> EagerLog:
    chosen = case(name)
    return log_eager(chosen.build(), chosen.args(), chosen.kwargs())


def scopes_of(log: EagerLog, op: str) -> list[str]:
    return [str(record.scope) for record in log.ops if record.op.startswith(f"aten.{op}.")]


def call_of(log: EagerLog, module: str, index: int = 0) -> CallRecord:
    return next(call for call in log.calls if (call.module, call.index) == (module, index))


def called(log: EagerLog) -> list[str]:
    return [f"{call.module}@{call.index}" for call in log.calls]


def test_operations_are_logged_in_the_innermost_call() -> None:
    log = log_case("bias_added_by_parent")
    assert scopes_of(log, "mm") == ["product"]
    assert scopes_of(log, "add") == scopes_of(log, "tanh") == [""]


def test_repeated_calls_are_numbered() -> None:
    log = log_case("called_in_loop")
    assert scopes_of(log, "addmm") == ["cell.linear", "cell.linear@1", "cell.linear@2"]
    assert scopes_of(log, "tanh") == ["cell", "cell@1", "cell@2"]


def test_calls_are_in_the_order_they_began_with_their_parents() -> None:
    log = log_case("nested_repeated_calls")
    assert called(log)[:4] == ["@0", "outer@0", "outer.inner@0", "outer.inner.linear@0"]
    parents = {site.id: site.parent for site in log.sites}
    assert parents["", 0] is None
    assert parents["outer.inner", 3] == ("outer", 1)


def test_a_shared_module_has_its_first_name() -> None:
    assert scopes_of(log_case("shared_under_two_names"), "addmm") == ["first.linear", "first.linear@1"]
    assert scopes_of(log_case("shared_and_called_by_later_name"), "tanh") == ["first"]


def test_an_unregistered_module_makes_no_call() -> None:
    log = log_case("unregistered_module")
    assert scopes_of(log, "tanh") == ["", "", "last"]
    assert called(log) == ["@0", "last@0", "last.linear@0"]


def test_a_forward_called_directly_belongs_to_the_caller() -> None:
    assert scopes_of(log_case("forward_called_directly"), "tanh") == ["", "tail"]


def test_a_users_hooks_run_inside_the_call_and_change_its_record() -> None:
    log = log_case("hooked")
    assert scopes_of(log, "sin") == ["second"]
    assert scopes_of(log, "mul") == ["first"]
    added = next(record for record in log.ops if record.op.startswith("aten.add."))
    assert torch.equal(call_of(log, "first").outputs[0], added.outputs[0])


def test_keyword_arguments_are_inputs() -> None:
    assert len(call_of(log_case("keyword_only_child"), "mix").inputs) == 2


class OverwritesInput(nn.Module):
    def forward(self, *, x: Tensor) -> Tensor:
        return x.mul_(3.0).add_(1.0)


class CallsOverwriter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = OverwritesInput()

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x=x * 1.0) + 0.0


def test_tensors_are_kept_as_they_were_before_in_place_operations() -> None:
    x = torch.tensor([1.0, 2.0])
    log = log_eager(CallsOverwriter(), (x,))
    child = call_of(log, "child")
    assert child.inputs[0].tolist() == [1.0, 2.0]
    assert child.outputs[0].tolist() == [4.0, 7.0]
    tripled = next(record for record in log.ops if record.op.startswith("aten.mul_."))
    assert tripled.outputs[0].tolist() == [3.0, 6.0]


def test_inputs_stay_as_they_are() -> None:
    x = torch.ones(2, requires_grad=True) * 2.0
    log_eager(OverwritesInput(), (), {"x": x})
    assert x.tolist() == [2.0, 2.0]


def test_copying_is_not_logged_as_an_operation() -> None:
    assert Counter(record.op for record in log_case("linear_root").ops) == {
        "aten.t.default": 1,
        "aten.addmm.default": 1,
    }


def test_the_branch_of_a_cond_is_logged_call_by_call() -> None:
    log = log_case("cond")
    (before, branch) = scopes_of(log, "addmm")
    assert before == "before.linear"
    assert branch in {"positive.linear", "negative"}
    assert [str(record.scope) for record in log.ops if record.op == "cond"] == [""]


def test_a_cond_in_a_branch_of_a_cond_is_logged() -> None:
    log = log_case("nested_cond")
    assert [str(record.scope) for record in log.ops if record.op == "cond"] == ["chooser", "chooser"]
    assert "chooser.outer.linear" in scopes_of(log, "addmm")


def test_each_iteration_of_a_while_loop_is_a_call() -> None:
    assert scopes_of(log_case("while_loop"), "tanh") == ["block", "block@1", "block@2"]


def test_the_fast_path_of_the_stock_encoder_hides_nothing() -> None:
    log = log_case("transformer_encoder")
    assert "encoder.layers.1.linear2@0" in called(log)
    assert "encoder.layers.0.self_attn" in scopes_of(log, "_safe_softmax") + scopes_of(log, "_softmax")


def test_fused_attention_shows_its_scores() -> None:
    log = log_case("scaled_dot_product_attention")
    assert not [record for record in log.ops if "flash" in record.op]
    assert scopes_of(log, "bmm")


class InInferenceMode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def test_composite_operations_come_apart_in_inference_mode_too() -> None:
    assert scopes_of(log_eager(InInferenceMode(), (torch.ones(2, 3),)), "addmm") == ["linear"]


class UnderVmap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: self.linear(row).relu())(x)


def test_a_call_under_vmap_keeps_operations_but_no_dead_tensors() -> None:
    log = log_eager(UnderVmap(), (torch.ones(2, 3),))
    assert scopes_of(log, "mm") == ["linear"]
    assert call_of(log, "linear").inputs == ()


class CompiledChild(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = torch.compile(case("called_in_loop").build(), fullgraph=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x)


def test_a_compiled_module_runs_as_plain_python() -> None:
    log = log_eager(CompiledChild(), (torch.ones(2, 8),))
    assert scopes_of(log, "tanh")[-1] == "child._orig_mod.cell@2"


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no")


class CatchesFailure(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fails = Fails()

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.fails(x)
        except ValueError:
            return x.sin()


def test_after_a_caught_error_the_caller_is_running_again() -> None:
    log = log_eager(CatchesFailure(), (torch.ones(2),))
    assert scopes_of(log, "sin") == [""]
    assert call_of(log, "fails").outputs == ()


@pytest.mark.parametrize("model", [Fails(), nn.Dropout(0.5)], ids=["after an error", "after a run"])
def test_nothing_is_left_behind(model: nn.Module) -> None:
    def state() -> tuple[object, ...]:
        stance = torch._dynamo.eval_frame._stance
        hooks = (len(model._forward_hooks), len(model._forward_pre_hooks))
        switches = (torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled())
        return nn.Module.__call__, stance, hooks, switches, torch.is_grad_enabled(), model.training

    before, numbers = state(), torch.random.get_rng_state()
    try:
        log_eager(model, (torch.ones(4),))
    except ValueError:
        assert isinstance(model, Fails)
    assert state() == before
    assert torch.equal(torch.random.get_rng_state(), numbers)


def test_what_is_kept_of_a_tensor_can_be_chosen() -> None:
    log = log_eager(nn.Linear(3, 3), (torch.ones(2, 3),), keep=lambda tensor: tensor.float().mean())
    assert all(output.ndim == 0 for record in log.ops for output in record.outputs)


def test_the_product_inside_a_linear_map_is_a_part_of_it() -> None:
    linear, x = nn.Linear(3, 3), torch.randn(2, 3)
    log = log_eager(linear, (x,), parts=True)
    assert [record.op for record in log.ops[1:3]] == ["aten.addmm.default", "aten.mm.default"]
    assert torch.allclose(log.ops[2].outputs[0], x @ linear.weight.T)
    assert len(log_eager(linear, (x,)).ops) == 2
