"""The module table: names and metadata of every module, all of it JSON, none of it by accident of the run."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hieronnx.capture.modules import describe_modules, parameter_names
from hieronnx.hierarchy.tags import TagPolicy
from support.exports import exported


class Text(str):
    """A str that is not quite one."""


class Mode(enum.Enum):
    FAST = 1


class Level(enum.IntEnum):
    HIGH = 3


class Opaque:
    """An object whose repr has its address."""


def activation(x: Tensor) -> Tensor:
    return x


class Shared(nn.Module):
    """Has one Linear by three names, and one weight in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.block = nn.ModuleDict({"again": self.first, "own": nn.Linear(2, 2, bias=False)})
        self.block["own"].weight = self.first.weight
        self.nothing = None
        self.register_module("empty", None)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: Tensor, *rest: Tensor, gain: float = 2.0, **options: Any) -> Tensor:
        return self.first(x)


class Scripted(nn.Module):
    def forward(self, x: Tensor, times: int = 3) -> Tensor:
        return x * times


class ScriptedOther(nn.Module):
    def forward(self, a: Tensor, b: Tensor, offset: int = 4) -> Tensor:
        return a + b + offset


class ScriptedList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([Scripted(), Scripted()])

    def forward(self, x: Tensor) -> Tensor:
        for cell in self.cells:
            x = cell(x)
        return x


class WrittenInC(nn.Module):
    forward = torch.relu


def defaults_of(**defaults: Any) -> Mapping[str, Any]:
    """Return the table's defaults for a forward with these."""
    import inspect

    class Made(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    keyword = inspect.Parameter.KEYWORD_ONLY
    Made.forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(inspect.Parameter(name, keyword, default=value) for name, value in defaults.items()),
        ]
    )
    module = describe_modules(Made())[""]
    assert module.forward_args == tuple(defaults)
    return module.forward_defaults


# -- paths and parameters -----------------------------------------------------------------------------------------


def test_a_shared_module_is_in_the_table_once_under_its_first_name() -> None:
    table = describe_modules(Shared())
    assert list(table) == ["", "first", "block", "block.own"]
    assert all(module.path == path for path, module in table.items())


def test_children_are_all_names_of_modules_shared_ones_too() -> None:
    table = describe_modules(Shared())
    assert table[""].children == ("first", "block")
    assert table["block"].children == ("again", "own")
    assert table["first"].children == ()


def test_parameters_are_named_once_each_and_counted_once() -> None:
    table = describe_modules(Shared())
    assert table[""].parameters == ("scale", "first.weight", "first.bias")
    assert table[""].direct_parameters == ("scale",)
    assert table[""].parameter_count == 3 + 4 + 2
    assert table["block"].parameters == ("again.weight", "again.bias")
    assert table["block"].direct_parameters == ()
    assert table["block.own"].parameters == ("weight",)
    assert table["block.own"].parameter_count == 4


def test_depth_is_the_number_of_names_in_the_path() -> None:
    assert {path: module.depth for path, module in describe_modules(Shared()).items()} == {
        "": 0,
        "first": 1,
        "block": 1,
        "block.own": 2,
    }


def test_classes_have_their_name_and_where_they_are_defined() -> None:
    class Local(nn.Module):
        pass

    table = describe_modules(nn.Sequential(Local(), nn.LayerNorm(2)))
    assert table["0"].class_name == "Local"
    assert table["0"].qualified_class.endswith("test_classes_have_their_name_and_where_they_are_defined.<locals>.Local")
    assert table["1"].qualified_class == "torch.nn.modules.normalization.LayerNorm"


def test_parameter_lists_and_dicts_are_modules_with_parameters_of_their_own() -> None:
    model = nn.Module()
    model.scales = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))])
    model.biases = nn.ParameterDict({"a": nn.Parameter(torch.ones(4))})
    table = describe_modules(model)
    assert table["scales"].direct_parameters == ("0", "1")
    assert table["scales"].parameter_count == 5
    assert table["biases"].direct_parameters == ("a",)
    assert table[""].parameters == ("scales.0", "scales.1", "biases.a")
    assert parameter_names(model) == {name: name for name in ("scales.0", "scales.1", "biases.a")}


def test_every_name_of_a_parameter_or_buffer_leads_to_its_first() -> None:
    assert parameter_names(Shared()) == {
        "scale": "scale",
        "first.weight": "first.weight",
        "first.bias": "first.bias",
        "block.again.weight": "first.weight",
        "block.again.bias": "first.bias",
        "block.own.weight": "first.weight",
        "steps": "steps",
    }


# -- forward ------------------------------------------------------------------------------------------------------


def test_arguments_of_forward_are_in_order_without_self() -> None:
    root = describe_modules(Shared())[""]
    assert root.forward_args == ("x", "rest", "gain", "options")
    assert root.forward_defaults == {"gain": 2.0}


@pytest.mark.parametrize(
    "value", [0, -7, 2.5, "text", "Straße", True, False, None, [], [1, [2.5, None]], {"a": {"b": [1]}}, {}]
)
def test_defaults_that_json_has_are_kept_as_they_are(value: Any) -> None:
    kept = defaults_of(x=value)["x"]
    assert kept == value
    assert type(kept) is type(value)


def test_a_tuple_is_written_as_a_list() -> None:
    assert json.loads(msgspec.json.encode(defaults_of(x=(1, (2, 3))))) == {"x": [1, [2, 3]]}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        ([1.0, float("inf")], "[1.0, inf]"),
        ({1: 2}, "{1: 2}"),
        (torch.float32, "torch.float32"),
        (torch.device("cpu"), "device(type='cpu')"),
        (slice(1, 2), "slice(1, 2, None)"),
        (b"bytes", "b'bytes'"),
        (1j, "1j"),
        (Text("text"), "'text'"),
        (np.float64(0.5), repr(np.float64(0.5))),
        (np.int64(5), repr(np.int64(5))),
        (Mode.FAST, "<Mode.FAST: 1>"),
        (Level.HIGH, "<Level.HIGH: 3>"),
        ({"a": np.float32(0.5)}, repr({"a": np.float32(0.5)})),
        (nn.Identity(), "Identity()"),
    ],
    ids=repr,
)
def test_other_defaults_are_written_by_their_repr(value: Any, written: str) -> None:
    assert defaults_of(x=value)["x"] == written


@pytest.mark.parametrize(
    "make", [Opaque, object, lambda: activation, lambda: functools.partial(activation), lambda: len]
)
def test_no_address_of_an_object_is_written(make: Any) -> None:
    written = defaults_of(x=make())["x"]
    assert "0x" not in written
    assert written.startswith(("<", "functools.partial(<function activation>"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
        lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner),
        max_leaves=6,
    )
)
def test_whatever_the_default_it_can_be_written_and_read_back(value: Any) -> None:
    described = defaults_of(x=value)
    assert json.loads(msgspec.json.encode(described)) == json.loads(json.dumps(dict(described), allow_nan=False))


# -- forwards without a signature ---------------------------------------------------------------------------------


def test_a_forward_written_in_c_has_no_arguments_to_read() -> None:
    module = describe_modules(WrittenInC())[""]
    assert (module.forward_args, dict(module.forward_defaults)) == ((), {})


def test_a_traced_module_has_no_arguments_to_read() -> None:
    module = describe_modules(torch.jit.trace(Scripted(), (torch.ones(1),)))[""]
    assert (module.forward_args, dict(module.forward_defaults)) == ((), {})


def test_scripted_modules_of_different_classes_each_have_their_own_arguments() -> None:
    table = describe_modules(nn.Sequential(torch.jit.script(Scripted()), torch.jit.script(ScriptedOther())))
    assert table["0"].forward_args == ("x", "times")
    assert table["1"].forward_args == ("a", "b", "offset")
    assert table["1"].forward_defaults == {"offset": 4}


def test_a_scripted_list_that_has_no_forward_is_in_the_table() -> None:
    table = describe_modules(torch.jit.script(ScriptedList()))
    assert list(table) == ["", "cells", "cells.0", "cells.1"]
    assert table["cells.1"].forward_args == ("x", "times")


def test_a_forward_of_one_instance_is_not_that_of_its_class() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].forward = lambda x, extra=1: x
    table = describe_modules(model)
    assert table["0"].forward_args == ("x", "extra")
    assert table["1"].forward_args == ("input",)


# -- what the structure lets expect ---------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(2)
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.spare = nn.ModuleDict({"one": Layer()})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_every_module_that_can_be_called_has_a_tag_to_expect() -> None:
    tags = {path: module.expected_tag for path, module in describe_modules(Stack()).items()}
    assert tags == {
        "": "/Stack",
        "layers": None,  # a list has no forward
        "layers.0": "/Stack/Layer.0",
        "layers.0.norm": "/Stack/Layer.0/LayerNorm",
        "layers.0.linear": "/Stack/Layer.0",  # no tag of its own
        "layers.1": "/Stack/Layer.1",
        "layers.1.norm": "/Stack/Layer.1/LayerNorm",
        "layers.1.linear": "/Stack/Layer.1",
        "spare": None,
        "spare.one": "/Stack/Layer.one",
        "spare.one.norm": "/Stack/Layer.one/LayerNorm",
        "spare.one.linear": "/Stack/Layer.one",
    }
    all_of_them = describe_modules(Stack(), TagPolicy(None))
    assert all_of_them["layers.1.linear"].expected_tag == "/Stack/Layer.1/Linear"


def test_children_have_their_classes_also_where_they_are_shared() -> None:
    model = Stack()
    model.again = model.layers[0]
    table = describe_modules(model)
    layer = f"{Layer.__module__}.Layer"
    container = "torch.nn.modules.container"
    assert table[""].child_classes == {
        "layers": f"{container}.ModuleList",
        "spare": f"{container}.ModuleDict",
        "again": layer,
    }
    assert "again" not in table
    assert table["layers"].child_classes == {"0": layer, "1": layer}
    assert table["layers.0.norm"].child_classes == {}


def test_the_tags_of_an_export_are_those_to_expect() -> None:
    for name in ("bert", "nested_repeated_calls"):
        hierarchy = exported(name, "torchscript").hierarchy
        for call in hierarchy.calls:
            if call.id.number == 0 and call.via == call.id.module:
                assert call.tag == hierarchy.modules[call.id.module].expected_tag
