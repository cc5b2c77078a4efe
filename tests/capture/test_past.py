"""Decoders with their cache: two steps of the file in ONNX Runtime are what `generate` does in PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers

import hieronnx
from hieronnx.errors import InputError
from support.cli import run
from support.exports import quiet
from support.zoo import CASES

COMMON: dict[str, Any] = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
CONFIGS = {
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "Llama": {
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
    },
}
CLASSES = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}


def build(family: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**COMMON, **CONFIGS[family])
        model = getattr(transformers, CLASSES[family])(config).eval()
        for parameter in model.parameters():  # far from each other, so that no two tokens are nearly the best
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
    return model


def generate(path: Path, ids: np.ndarray, mask: np.ndarray, steps: int) -> np.ndarray:
    """Generate greedily with the file alone: from an empty past, then from what it gave."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    wanted = {item.name: item.shape for item in session.get_inputs()}
    names = [item.name for item in session.get_outputs()]
    past = {
        name: np.zeros((len(ids), shape[1], 0, shape[3]), np.float32)
        for name, shape in wanted.items()
        if name.startswith("past_key_values.")
    }
    tokens, new = ids, ids
    for _ in range(steps):
        positions = np.maximum(mask.cumsum(-1) - 1, 0)[:, -new.shape[1] :]
        feeds = {"input_ids": new, "attention_mask": mask, "position_ids": positions, **past}
        found = dict(zip(names, session.run(None, feeds), strict=True))
        new = found["logits"][:, -1:].argmax(-1)
        tokens = np.concatenate([tokens, new], 1)
        mask = np.concatenate([mask, np.ones_like(new)], 1)
        past = {name: found[name.replace("past_key_values", "present")] for name in past}
    return tokens


def check(path: Path, model: Any) -> None:
    ids = np.array([[5, 17, 9, 30], [0, 0, 8, 21], [7, 3, 11, 12]])
    mask = (ids != 0).astype(np.int64)
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "use_cache": True}
    with torch.no_grad():
        expected = model.generate(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), **options)
    # The end token is kept from coming first, as min_new_tokens does.
    assert 2 not in expected[:, 4:]
    np.testing.assert_array_equal(generate(path, ids, mask, 4), expected.numpy())


def test_a_folder_is_exported_with_its_past(tmp_path: Path) -> None:
    model = build("Llama")
    model.save_pretrained(tmp_path / "llama")
    result = run(
        "export", tmp_path / "llama", "-o", tmp_path / "m.onnx", "--with-past", "--exporter", "dynamo", "--json"
    )
    assert result.exit_code == 0, result.stderr
    values = json.loads(result.stdout)
    past = [f"past_key_values.{n}.{what}" for n in range(2) for what in ("key", "value")]
    inputs, outputs = (values["hierarchy"]["model"][kind] for kind in ("inputs", "outputs"))
    assert list(inputs) == ["input_ids", "attention_mask", "position_ids", *past]
    assert list(outputs) == ["logits", *(name.replace("past_key_values", "present") for name in past)]
    assert inputs["input_ids"]["shape"] == ["batch_size", "sequence_length"]
    assert inputs["attention_mask"]["shape"] == ["batch_size", "past_sequence_length + sequence_length"]
    assert inputs[past[0]]["shape"] == ["batch_size", 2, "past_sequence_length", 4]
    assert values["axes"]["passed"] is True
    assert values["hierarchy"]["summary"]["coverage"] == 100.0
    check(tmp_path / "m.onnx", model)
    verified = run("verify", tmp_path / "m.onnx", "--model", tmp_path / "llama", "--with-past", "--json")
    assert verified.exit_code == 0, verified.stderr
    assert json.loads(verified.stdout)["compared"] == 1.0
    annotated = ("annotate", tmp_path / "m.onnx", "--model", tmp_path / "llama", "-o", tmp_path / "a.onnx")
    assert run(*annotated, "--with-past").exit_code == 0
    refused = run("verify", tmp_path / "m.onnx", "--model", tmp_path / "llama")
    assert refused.exit_code == 2
    assert "'past_key_values.0.key'" in refused.stderr
    assert "--with-past" in refused.stderr


def test_layers_that_keep_a_short_window_do_not_keep_a_decoder_from_its_cache(tmp_path: Path) -> None:
    config = transformers.Gemma3TextConfig(
        **COMMON, **CONFIGS["Llama"], head_dim=4, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.Gemma3ForCausalLM(config).eval()
    with quiet():
        result = hieronnx.export(model, output=tmp_path / "gemma.onnx", **hieronnx.with_past(model))
    assert result.axes is not None
    check(result.path, model)


def test_python_gets_the_arguments_of_the_export(tmp_path: Path) -> None:
    model = build("GPT2")
    with quiet():
        options = hieronnx.with_past(model)
        result = hieronnx.export(model, (), tmp_path / "m.onnx", exporter="torchscript", **options)
    assert result.axes is not None
    assert result.axes.passed
    assert str(result.hierarchy.calls[0].id) == ""
    assert result.hierarchy.modules[""].class_name == "GPT2LMHeadModel"
    check(tmp_path / "m.onnx", model)


def test_models_without_such_a_cache_are_refused(tmp_path: Path) -> None:
    mamba = transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(InputError, match="takes no past_key_values, so it is no decoder with a cache"):
        hieronnx.with_past(mamba)
    model = build("GPT2")
    model.config.use_cache = False
    with pytest.raises(InputError, match=r"set config\.use_cache = True"):
        hieronnx.with_past(model)
    for name in ("t5", "bart", "whisper"):
        with pytest.raises(InputError, match=r"has an encoder beside its decoder.*; export it without"):
            hieronnx.with_past(CASES[name].build())
    with pytest.raises(InputError, match=r"returns no cache.*; export it without --with-past"):
        hieronnx.with_past(CASES["bert"].build())
    result = run("export", "demo", "-o", tmp_path / "m.onnx", "--with-past")
    assert result.exit_code == 2
    assert "--with-past is of Hugging Face models" in result.stderr
