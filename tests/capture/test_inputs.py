"""Example inputs fit the model, are the same each time, and wrong ones get one clear line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hieronnx.capture.demo import build_demo, demo_inputs
from hieronnx.capture.dynamic import to_dynamic_shapes
from hieronnx.capture.inputs import make_inputs
from hieronnx.capture.specs import InputSpec
from hieronnx.cli.syntax import parse_dynamic, parse_input, read_input_specs
from hieronnx.errors import InputError

os.environ.setdefault("HF_HUB_OFFLINE", "1")

TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 99,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
TOWERS: dict[str, Any] = {"text_config": TEXT, "vision_config": VISION}
BOTH: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 99,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
}
AUDIO: dict[str, Any] = {
    **TEXT,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
# class, config class, config, the names expected
MODELS: list[tuple[str, str, dict[str, Any], str]] = [
    ("BertModel", "BertConfig", TEXT, "input_ids attention_mask token_type_ids"),
    (
        "AlbertModel",
        "AlbertConfig",
        {**TEXT, "embedding_size": 16},
        "input_ids attention_mask token_type_ids",
    ),
    (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2},
        "input_ids attention_mask",
    ),
    ("LlamaForCausalLM", "LlamaConfig", {**TEXT, "num_key_value_heads": 2}, "input_ids attention_mask"),
    ("MambaModel", "MambaConfig", {**TEXT}, "input_ids attention_mask"),
    (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99},
        "input_ids attention_mask decoder_input_ids",
    ),
    ("BartModel", "BartConfig", BOTH, "input_ids attention_mask decoder_input_ids"),
    ("BartForSequenceClassification", "BartConfig", BOTH, "input_ids attention_mask decoder_input_ids"),
    ("ViTModel", "ViTConfig", VISION, "pixel_values"),
    (
        "ResNetModel",
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
        "pixel_values",
    ),
    (
        "ConvNextModel",
        "ConvNextConfig",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "image_size": 32},
        "pixel_values",
    ),
    (
        "SegformerModel",
        "SegformerConfig",
        {"hidden_sizes": [8, 16, 16, 16], "num_attention_heads": [1, 1, 2, 2], "depths": [1, 1, 1, 1]},
        "pixel_values",
    ),
    ("VideoMAEModel", "VideoMAEConfig", {**VISION, "num_frames": 4}, "pixel_values"),
    ("CLIPModel", "CLIPConfig", TOWERS, "input_ids pixel_values attention_mask"),
    (
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {
            "text_config": {**TEXT, "model_type": "llama"},
            "vision_config": {**VISION, "model_type": "clip_vision_model"},
            "image_token_id": 98,
        },
        "input_ids attention_mask",
    ),
    ("Wav2Vec2Model", "Wav2Vec2Config", AUDIO, "input_values"),
    ("ASTModel", "ASTConfig", {**VISION, "max_length": 64, "num_mel_bins": 16}, "input_values"),
    (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**BOTH, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 16},
        "input_features decoder_input_ids",
    ),
    (
        "Speech2TextForConditionalGeneration",
        "Speech2TextConfig",
        {**BOTH, "input_feat_per_channel": 16, "conv_channels": 32},
        "input_features decoder_input_ids",
    ),
]


def build(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    _, config, values, _ = next(entry for entry in MODELS if entry[0] == name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**values))
    return model.eval()


@contextmanager
def unchanged_random_state() -> Iterator[None]:
    """Fail where the body draws from, or reseeds, the global generator."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


class Pair(nn.Module):
    def forward(self, left: Tensor, right: Tensor, scale: float = 1.0) -> Tensor:
        return left + scale * right


class Open(nn.Module):
    def forward(self, x: Tensor, **others: Tensor) -> Tensor:
        return x + sum(others.values())


class WithExample(Pair):
    def __init__(self, example: object) -> None:
        super().__init__()
        self.example_inputs = example


# --- Hugging Face models ---


@pytest.mark.parametrize(("name", "names"), [(entry[0], entry[3]) for entry in MODELS])
def test_inputs_from_a_config_run(name: str, names: str) -> None:
    model = build(name)
    with unchanged_random_state():
        inputs = make_inputs(model)
    assert list(inputs) == names.split()
    with torch.no_grad():
        outputs = model(**inputs)
    tensors = [value for value in outputs.values() if isinstance(value, Tensor)]
    assert all(torch.isfinite(tensor).all() for tensor in tensors)


def test_inputs_are_the_same_each_time_and_in_the_order_of_the_signature() -> None:
    model = build("BertModel")
    first, second = make_inputs(model), make_inputs(model)
    assert list(first) == ["input_ids", "attention_mask", "token_type_ids"]
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_mask_is_integer_and_hides_one_position() -> None:
    mask = make_inputs(build("BertModel"))["attention_mask"]
    assert mask.dtype == torch.int64
    assert mask.sum() == mask.numel() - 1
    assert mask[-1, -1] == 0


def test_ids_are_in_the_vocabulary_and_end_with_the_end_token() -> None:
    ids = make_inputs(build("BartModel"))["input_ids"]
    assert ids.dtype == torch.int64
    assert (ids[:, -1] == 2).all()
    assert not set(ids[:, :-1].flatten().tolist()) & {0, 1, 2, 3}
    assert ids.max() < 99
    assert len(ids.unique()) > 4


def test_a_given_input_sets_the_sizes_of_the_others() -> None:
    inputs = make_inputs(build("BertModel"), [parse_input("input_ids=int32[3,5]")])
    assert {name: tuple(tensor.shape) for name, tensor in inputs.items()} == {
        "input_ids": (3, 5),
        "attention_mask": (3, 5),
        "token_type_ids": (3, 5),
    }
    assert inputs["input_ids"].dtype == torch.int32
    assert inputs["input_ids"].max() < 99


def test_a_given_alternative_replaces_the_main_input() -> None:
    model = build("BertModel")
    inputs = make_inputs(model, [parse_input("inputs_embeds=float32[1,4,32]")])
    assert set(inputs) == {"inputs_embeds", "attention_mask", "token_type_ids"}
    assert inputs["attention_mask"].shape == (1, 4)
    model(**inputs)


def test_a_short_model_gets_a_short_sequence() -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel(transformers.BertConfig(**TEXT, max_position_embeddings=4))
    assert make_inputs(model)["input_ids"].shape == (2, 4)


def test_floats_have_the_dtype_of_the_model() -> None:
    assert make_inputs(build("ViTModel").bfloat16())["pixel_values"].dtype == torch.bfloat16


def test_trying_shapes_leaves_the_modes_of_the_model() -> None:
    model = build("WhisperForConditionalGeneration").train()
    frozen = next(model.children()).eval()
    before = [module.training for module in model.modules()]
    with unchanged_random_state():
        inputs = make_inputs(model)
    assert inputs["input_features"].shape == (2, 16, 40)
    assert [module.training for module in model.modules()] == before
    assert not frozen.training


def test_when_no_shape_runs_the_error_tells_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("WhisperForConditionalGeneration").train()

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("out of order\nsecond line")

    monkeypatch.setattr(type(model), "__call__", fail)
    with pytest.raises(InputError, match=r"input_features\[2, 16, 100\].*out of order$") as caught:
        make_inputs(model)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert model.training


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        (
            "BertModel",
            "input_idz=int64[1,8]",
            "no input 'input_idz' in BertModel.forward; did you mean 'input_ids'",
        ),
        ("BertModel", "input_ids=float32[1,8]", "input 'input_ids' takes integers; got float32, try int64"),
        ("BertModel", "input_ids=int64[8]", r"shape \[8\]; BertModel takes \[batch,sequence\]"),
        ("ViTModel", "pixel_values=float32[1,1,32,32]", r"takes .*\[batch,3,height,width\]"),
        ("ViTModel", "pixel_values=float32[3,32,32]", r"takes .*\[batch,3,height,width\]"),
    ],
)
def test_a_spec_that_does_not_fit_a_pretrained_model(name: str, spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_inputs(build(name), [parse_input(spec)])


# --- plain modules ---


def test_the_demo_gives_its_own_inputs() -> None:
    inputs = make_inputs(build_demo())
    expected = demo_inputs()
    assert list(inputs) == list(expected)
    assert all(torch.equal(inputs[name], expected[name]) for name in expected)


def test_beside_given_inputs_optional_examples_are_left_out() -> None:
    inputs = make_inputs(build_demo(), [parse_input("tokens=int64[3,5]")])
    assert list(inputs) == ["tokens"]
    build_demo()(**inputs)


X, Y = torch.ones(2), torch.zeros(2)


@pytest.mark.parametrize(
    "example",
    [{"right": Y, "left": X}, (X, Y), [X, Y], lambda: (X, Y)],
    ids=["dict", "tuple", "list", "call"],
)
def test_example_inputs_may_have_any_common_form(example: object) -> None:
    inputs = make_inputs(WithExample(example))
    assert list(inputs) == ["left", "right"]
    assert inputs["left"] is X


def test_an_example_fills_what_is_required_and_not_given() -> None:
    inputs = make_inputs(WithExample((X, Y)), [InputSpec("right", "float32", (2,))])
    assert inputs["left"] is X
    assert inputs["right"] is not Y


def test_example_inputs_that_raise_are_named() -> None:
    def fail() -> None:
        raise ValueError("nothing here")

    with pytest.raises(InputError, match=r"WithExample\.example_inputs raised ValueError: nothing here"):
        make_inputs(WithExample(fail))


def test_without_specs_a_plain_module_says_what_to_pass() -> None:
    with pytest.raises(InputError) as caught:
        make_inputs(Pair())
    assert "Pair.forward takes as left, right" in str(caught.value)
    assert "--input 'left=dtype[shape]' --input 'right=dtype[shape]'" in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 8, 3), "1,3,64,64"),
        (nn.Conv1d(5, 8, 3), "1,5,64"),
        (nn.Linear(7, 8), "1,7"),
        (nn.LazyLinear(8), "1,3"),
        (nn.ReLU(), "1,3"),
    ],
)
def test_the_example_of_an_input_is_one_that_the_first_weight_takes(layer: nn.Module, shape: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"for example --input 'input=float32[{shape}]'")):
        make_inputs(layer)


def test_specs_are_used_as_given_and_sorted_by_the_signature() -> None:
    inputs = make_inputs(Pair(), map(parse_input, ["right=float16[2,3]", "left=float32[]"]))
    assert list(inputs) == ["left", "right"]
    assert inputs["left"].shape == ()
    assert inputs["right"].dtype == torch.float16
    assert not torch.equal(inputs["left"].expand(2, 3), inputs["right"].float())


def test_a_module_without_parameters_needs_no_inputs() -> None:
    class Source(nn.Module):
        def forward(self) -> Tensor:
            return torch.ones(1)

    assert make_inputs(Source()) == {}


def test_inputs_by_position_only_are_left_to_python() -> None:
    class Star(nn.Module):
        def forward(self, *xs: Tensor) -> Tensor:
            return xs[0]

    class Slash(nn.Module):
        def forward(self, x: Tensor, /) -> Tensor:
            return x

    for model in (Star(), Slash()):
        with pytest.raises(InputError, match="by position only; export it from Python"):
            make_inputs(model)


def test_what_variadic_keywords_take_is_allowed() -> None:
    inputs = make_inputs(Open(), map(parse_input, ["extra=float32[2]", "x=float32[2]"]))
    assert list(inputs) == ["x", "extra"]


def test_unknown_and_doubled_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"no input 'rigth' in Pair\.forward; did you mean 'right'"):
        make_inputs(Pair(), [parse_input("rigth=float32[1]")])
    with pytest.raises(InputError, match="its parameters are left, right, scale"):
        make_inputs(Pair(), [parse_input("zzz=float32[1]")])
    with pytest.raises(InputError, match="'left' is given twice"):
        make_inputs(Pair(), [parse_input("left=float32[1]"), parse_input("left=float32[2]")])


@pytest.mark.parametrize(
    ("dtype", "bounds"),
    [("int64", (5, 9)), ("uint8", (0, 255)), ("float32", (-1.0, 0.5)), ("bool", (1, 1)), ("int32", (3, 3))],
)
def test_a_range_includes_both_ends_and_nothing_else(dtype: str, bounds: tuple[float, float]) -> None:
    specs = [InputSpec("left", dtype, (4000,), bounds), InputSpec("right", "float32", (1,))]
    drawn = make_inputs(Pair(), specs)["left"]
    assert drawn.dtype == getattr(torch, dtype)
    assert bounds[0] <= drawn.min()
    assert drawn.max() <= bounds[1]
    if not drawn.is_floating_point():
        assert (drawn.min(), drawn.max()) == bounds


@pytest.mark.parametrize(("dtype", "bounds"), [("uint8", (0, 300)), ("int64", (0, 1.5)), ("bool", (0, 2))])
def test_a_range_that_the_dtype_cannot_hold_is_refused(dtype: str, bounds: tuple[float, float]) -> None:
    specs = [InputSpec("left", dtype, (1,), bounds), InputSpec("right", "float32", (1,))]
    with pytest.raises(InputError, match=f"must be of whole numbers between .* for {dtype}"):
        make_inputs(Pair(), specs)


# --- what the command line says ---


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("input_ids=int64[1,128]", InputSpec("input_ids", "int64", (1, 128))),
        ("x=float32[]", InputSpec("x", "float32", ())),
        (" x = bool[ 2 , 3 ] ", InputSpec("x", "bool", (2, 3))),
        ("_x1=bfloat16[0]", InputSpec("_x1", "bfloat16", (0,))),
    ],
)
def test_parse_input(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "cannot read input 'x'; expected name=dtype"),
        ("x=float32", "expected name=dtype"),
        ("=float32[1]", "expected name=dtype"),
        ("x=float32[1", "expected name=dtype"),
        ("x=float32[1][2]", "expected name=dtype"),
        ("x=float32[1,a]", "size 'a' is not a whole number"),
        ("x=float32[1,]", "size '' is not a whole number"),
        ("x=float32[-1]", "size '-1' is not a whole number"),
        ("x=flaot32[1]", "unknown dtype 'flaot32'; did you mean 'float32'"),
        ("x=str[1]", "unknown dtype 'str'; expected one of float32, float16"),
    ],
)
def test_parse_input_refuses(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_input(text)


def test_parse_dynamic() -> None:
    assert parse_dynamic("ids:0=batch,1=sequence") == ("ids", {0: "batch", 1: "sequence"})
    assert parse_dynamic(" x : 2 = n ") == ("x", {2: "n"})


@pytest.mark.parametrize("text", ["x", "x:", "x:batch", "x:0=", "x:0=1a", "x:-1=n", ":0=n", "x:0=a,", "x=0:a"])
def test_parse_dynamic_refuses(text: str) -> None:
    with pytest.raises(InputError, match="cannot read dynamic axes"):
        parse_dynamic(text)


def test_parse_dynamic_refuses_an_axis_given_twice() -> None:
    with pytest.raises(InputError, match="an axis is given twice"):
        parse_dynamic("x:0=a,0=b")


def test_read_input_specs(tmp_path: Path) -> None:
    path = tmp_path / "specs.json"
    path.write_text('{"a": {"shape": [1, 8], "dtype": "int64", "range": [0, 99]}, "b": {"shape": [], "dtype": "bool"}}')
    assert read_input_specs(path) == [
        InputSpec("a", "int64", (1, 8), (0, 99)),
        InputSpec("b", "bool", ()),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "do not have the form"),
        ("[]", "do not have the form"),
        ('{"a": {"shape": "1", "dtype": "int64"}}', "do not have the form.*shape"),
        ('{"a": {"shape": [1]}}', "missing required field `dtype`"),
        ('{"a": {"shape": [1], "dtype": "int64", "rnge": [0, 1]}}', "unknown field `rnge`"),
        ('{"a": {"shape": [1], "dtype": "int64", "range": [0]}}', "do not have the form"),
        ('{"a": {"shape": [1], "dtype": "int65"}}', "unknown dtype 'int65'"),
        ('{"a": {"shape": [-1], "dtype": "int64"}}', "has a negative size"),
        ('{"a": {"shape": [1], "dtype": "int64", "range": [2, 1]}}', r"must be \[lowest, highest\]"),
    ],
)
def test_read_input_specs_refuses(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "specs.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        read_input_specs(path)
    assert "\n" not in str(caught.value)


def test_read_input_specs_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the input specs .*none\.json': No such file"):
        read_input_specs(tmp_path / "none.json")


def test_parsing_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hieronnx.cli.syntax import parse_input; print(parse_input('x=float32[1]').shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(1,)"


# --- dynamic axes ---

DYNAMIC: Mapping[str, Mapping[int, str]] = {"right": {0: "batch", 1: "n"}}
PAIR = {"left": torch.ones(2, 3), "right": torch.ones(2, 3)}


def test_dynamic_shapes_are_sorted_by_the_signature() -> None:
    shapes = to_dynamic_shapes(Pair(), (), dict(reversed(PAIR.items())), DYNAMIC)
    assert shapes == {"left": None, "right": {0: "batch", 1: "n"}}
    assert list(shapes) == ["left", "right"]


def test_nothing_dynamic_is_none() -> None:
    assert to_dynamic_shapes(Pair(), (), PAIR, {}) is None


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"rigth": {0: "n"}}, "no dynamic input 'rigth'.*did you mean 'right'"),
        ({"scale": {0: "n"}}, "'scale' is not among the inputs of this export"),
        ({"left": {2: "n"}}, r"input 'left' of shape \[2, 3\] has no axis 2"),
    ],
)
def test_dynamic_axes_that_do_not_fit(dynamic: dict[str, dict[int, str]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_dynamic_shapes(Pair(), (), PAIR, dynamic)


def test_a_dynamic_input_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(InputError, match="'scale' is a float, not a tensor"):
        to_dynamic_shapes(Pair(), (), {**PAIR, "scale": 2.0}, {"scale": {0: "n"}})


def test_what_variadic_keywords_take_is_nested_as_torch_export_binds_it() -> None:
    kwargs = {"x": torch.ones(2, 3), "extra": torch.ones(2, 3)}
    shapes = to_dynamic_shapes(Open(), (), kwargs, {"extra": {0: "batch"}})
    assert shapes == {"x": None, "others": {"extra": {0: "batch"}}}


def test_torch_takes_the_dynamic_shapes() -> None:
    model, dynamic = Pair().eval(), {name: {0: "batch"} for name in PAIR}
    shapes = to_dynamic_shapes(model, (), PAIR, dynamic)
    program = torch.onnx.export(model, (), kwargs=PAIR, dynamo=True, dynamic_shapes=shapes, verbose=False)
    assert program is not None
    assert [str(value.shape) for value in program.model.graph.inputs] == ["[batch,3]", "[batch,3]"]
