"""The plain PyTorch cases: each model's class is named for its edge case, and so is the case."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import _calls, _containers, _control_flow, _operators, _regions
from ._case import DYNAMO, TORCHSCRIPT, Case, randomise, seed, seed_inputs, seed_model

Inputs = Callable[[], tuple[Any, ...]]


def edge(make: Callable[[], nn.Module], args: Inputs, **fields: Any) -> Case:
    """Return the case of a model class, or of a function that makes a model, under its name in snake case."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", make.__name__).lower()
    return Case(**{"name": name, "build": seed_model(make), "args": seed_inputs(args)} | fields)


def rows() -> tuple[Tensor, ...]:
    return (torch.randn(3, 8),)


def two_rows() -> tuple[Tensor, ...]:
    return torch.randn(3, 8), torch.randn(3, 8)


def two_named_rows() -> dict[str, Any]:
    return dict(zip("xy", two_rows(), strict=True))


def long_rows() -> tuple[Tensor, ...]:
    return (torch.randn(6, 8),)


def sequences() -> tuple[Tensor, ...]:
    return (torch.randn(2, 4, 8),)


def images() -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, 6, 6),)


def signals() -> tuple[Tensor, ...]:
    return (torch.randn(2, 4, 7),)


def ids() -> tuple[Tensor, ...]:
    return (torch.randint(0, 10, (2, 5)),)


def shown() -> Tensor:
    """Return the mask of two sequences of four, the second without its last two positions."""
    return torch.tensor([[True, True, True, True], [True, True, False, False]])


CALLS = (
    edge(_calls.SharedUnderTwoNames, rows),
    edge(_calls.SharedUnderTwoParents, rows),
    edge(_calls.SharedAndCalledByLaterName, rows),
    edge(_calls.SharedAtTwoDepths, rows),
    edge(_calls.SharedActivation, rows),
    edge(_calls.CalledInLoop, rows),
    edge(_calls.CallsInterleaved, rows),
    edge(_calls.NestedRepeatedCalls, rows),
    edge(_calls.RecursiveChild, rows),
    edge(_calls.GrandchildCalledDirectly, rows),
    edge(_calls.SiblingBorrowed, rows),
    edge(_calls.OtherMethodThanForward, rows),
    edge(_calls.ForwardCalledDirectly, rows),
    edge(_calls.UnregisteredModule, rows),
    edge(_calls.UnusedModules, rows),
    edge(_calls.ThirtyLevelsDeep, rows),
    edge(_calls.KeywordOnlyChild, tuple, kwargs=seed_inputs(two_named_rows)),
    edge(_calls.KeywordOnlyRoot, tuple, kwargs=seed_inputs(two_named_rows)),
    edge(_calls.ReturnsDict, rows),
    edge(_calls.ReturnsNested, rows),
    edge(_calls.DropoutAndIdentity, rows),
    edge(_calls.Hooked, rows),
    edge(_calls.SameClassName, rows),
    edge(_calls.ReplayedOnSameInput, rows),
)

CONTAINERS = (
    edge(_containers.linear_root, rows),
    edge(_containers.sequential_root, rows),
    edge(_containers.SequentialInSequential, rows),
    edge(_containers.SlicedSequential, rows),
    edge(_containers.TwoModuleLists, two_rows),
    edge(_containers.ModuleListOfModuleLists, rows),
    edge(_containers.ReversedModuleList, rows),
    edge(_containers.OddModuleDictKeys, rows),
    edge(_containers.ParameterListModule, rows),
    edge(_containers.ParameterDictModule, rows),
    edge(_containers.ParametrizedWeight, rows),
    edge(_containers.NamedLikeOperations, rows),
)

OPERATORS = (
    edge(_operators.RootSlicing, long_rows),
    edge(_operators.RootSlicingAroundModule, long_rows),
    edge(_operators.SlicingInChild, long_rows),
    edge(_operators.ScaledDotProductAttention, sequences),
    edge(_operators.MaskInEveryLayer, lambda: (*sequences(), shown())),
    edge(_operators.FunctionalOnChildWeight, rows),
    edge(_operators.ConvBatchNorm, images),
    edge(_operators.ConvBatchNormSequential, images),
    edge(_operators.ConvBatchNormChain, images),
    edge(_operators.ConvBatchNormResidual, images),
    edge(_operators.ConvBatchNormBottlenecks, images),
    edge(_operators.ConstantFoldedBranch, sequences),
    edge(_operators.TiedWeights, ids),
    edge(_operators.InPlaceOps, rows),
    edge(_operators.BiasAddedByParent, rows),
    edge(_operators.LayerNormByHand, rows),
    edge(_operators.GeluByHand, rows),
    edge(_operators.NormStack, signals),
    edge(_operators.Lstm, sequences),
    edge(_operators.GruBidirectional, sequences),
    edge(_operators.TransformerEncoder, sequences),
    edge(_operators.MultiheadAttention, lambda: (*sequences(), ~shown())),
    edge(_operators.IntegerInputs, lambda: (*ids(), torch.tensor(3))),
    edge(_operators.BoolInputs, lambda: (*sequences(), shown()[..., None])),
    edge(_operators.HalfInputs, lambda: (torch.randn(3, 8).half(),), tolerance=5e-3),
    edge(_operators.GatheredBags, lambda: (*ids(), torch.rand(2, 5))),
    edge(_operators.InputAsOutput, rows),
    edge(_operators.SameOutputTwice, rows),
    edge(_operators.UnusedInput, two_rows),
    edge(
        _operators.EqualParameters,
        rows,
        build=seed(lambda: randomise(_operators.EqualParameters()).equalise().eval(), 0),
    ),
)

NO_TRACE = {
    "torchscript": "Detected that you are using FX to torch.jit.trace a dynamo-optimized function. "
    "This is not supported at the moment."
}

CONTROL_FLOW = (
    edge(_control_flow.Cond, rows, exporters=DYNAMO, why_not=NO_TRACE),
    edge(_control_flow.NestedCond, rows, exporters=DYNAMO, why_not=NO_TRACE),
    edge(_control_flow.WhileLoop, rows, exporters=DYNAMO, why_not=NO_TRACE),
    edge(
        _control_flow.ScriptedIf,
        rows,
        exporters=TORCHSCRIPT,
        why_not={"dynamo": "Could not guard on data-dependent expression Eq(u0, 1)"},
    ),
    edge(_control_flow.ScriptedLoop, two_rows),
    edge(
        _control_flow.ScriptedRoot,
        rows,
        build=seed(lambda: torch.jit.script(randomise(_control_flow.ScriptedRoot()).eval()), 0),
        exporters=TORCHSCRIPT,
        why_not={"dynamo": "Exporting a ScriptModule is not supported."},
    ),
)

REGIONS = (
    edge(_regions.NoGradRegion, rows),
    edge(_regions.AutocastRegion, rows),
    edge(_regions.Checkpointed, rows),
    edge(_regions.CustomFunction, rows),
    edge(_regions.VectorizedMap, rows),
)

EDGE_CASES: tuple[Case, ...] = (*CALLS, *CONTAINERS, *OPERATORS, *CONTROL_FLOW, *REGIONS)
