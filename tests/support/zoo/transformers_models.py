"""Transformers models of different kinds, from small configs, with random weights.

Transformers is imported when a model or its inputs are built, never with this file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ._case import DYNAMO, Case, seed_inputs, seed_model

VOCABULARY = 64
WIDTH = 32
# How most models name their sizes.
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
TEXT = SMALL | {"max_position_embeddings": 32}
DECODER = TEXT | {"use_cache": False}
VISION = {key: SMALL[key] for key in SMALL if key != "vocab_size"} | {"image_size": 16, "patch_size": 8}

# The TorchScript exporter passes every default that the forward's signature has, by position. Transformers
# then adds `use_cache` a second time. A default that is a number becomes a tensor and an input of the file,
# which Transformers reads as an index: the logits of one position, where eager gives them all.


def hf(
    name: str,
    model: str,
    config: dict[str, Any],
    *,
    args: Callable[[], tuple[Any, ...]] = tuple,
    kwargs: Callable[[], dict[str, Any]] = dict,
    **fields: Any,
) -> Case:
    """Return the case of a Transformers model class, with options for its own config class."""

    def make() -> nn.Module:
        import transformers

        model_class = getattr(transformers, model)
        return model_class(model_class.config_class(**copy.deepcopy(config)))

    return Case(
        name=name,
        build=seed_model(make),
        args=seed_inputs(args),
        kwargs=seed_inputs(kwargs),
        transformers=True,
        **fields,
    )


def token_ids(length: int = 8) -> Tensor:
    # The first ids are special in most models: padding among the tokens would move positions.
    return torch.randint(4, VOCABULARY, (2, length))


def mask(length: int = 8) -> Tensor:
    """Return the mask of two sequences, the second without its last three positions."""
    shown = torch.ones(2, length, dtype=torch.int64)
    shown[1, -3:] = 0
    return shown


def text() -> dict[str, Any]:
    return {"input_ids": token_ids(), "attention_mask": mask()}


def text_with_types() -> dict[str, Any]:
    return text() | {"token_type_ids": torch.randint(0, 2, (2, 8))}


def text_with_last() -> dict[str, Any]:
    """Return text, and the positions to give logits for, which a tensor makes an honest input."""
    return text() | {"logits_to_keep": torch.tensor([5, 7])}


def past_and_next() -> dict[str, Any]:
    """Return two new tokens for each of two sequences, and a cache of six that came before."""
    from transformers import DynamicCache
    from transformers.exporters.exporter_dynamo import register_pytree_node

    register_pytree_node(DynamicCache)
    past = DynamicCache([(torch.randn(2, 2, 6, 16), torch.randn(2, 2, 6, 16)) for _ in range(2)])
    shown = torch.ones(2, 8, dtype=torch.int64)
    shown[1, :2] = 0
    return {"input_ids": token_ids(2), "attention_mask": shown, "past_key_values": past, "use_cache": True}


def translation() -> dict[str, Any]:
    return text() | {"decoder_input_ids": token_ids(5), "decoder_attention_mask": mask(5)}


def images(size: int = 16) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def large_images() -> dict[str, Any]:
    return images(32)


def text_and_images() -> dict[str, Any]:
    return {"input_ids": token_ids(), **images(), "attention_mask": mask()}


def sound() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 400)}


def transcription() -> dict[str, Any]:
    return {
        "input_features": torch.randn(2, 8, 16),
        "decoder_input_ids": token_ids(5),
        "decoder_attention_mask": mask(5),
    }


SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "use_cache": False,
}

ENCODERS = (
    hf("bert", "BertModel", TEXT, kwargs=text_with_types),
    hf("roberta", "RobertaForSequenceClassification", TEXT, kwargs=text),
    hf(
        "distilbert",
        "DistilBertModel",
        {"vocab_size": VOCABULARY, "dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 48},
        args=lambda: tuple(text().values()),
    ),
    hf("albert", "AlbertModel", TEXT | {"embedding_size": 16}, kwargs=text_with_types),
    hf("electra", "ElectraForTokenClassification", TEXT | {"embedding_size": 16}, kwargs=text),
    hf(
        "deberta",
        "DebertaV2Model",
        TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4},
        kwargs=text,
    ),
    hf("modernbert", "ModernBertModel", TEXT | {"pad_token_id": 0}, kwargs=text),
    hf("mpnet", "MPNetModel", TEXT, kwargs=text),
    hf(
        "fnet",
        "FNetModel",
        TEXT,
        kwargs=text,
        exporters=DYNAMO,
        why_not={"torchscript": "Exporting the operator 'aten::fft_fftn' to ONNX opset version 20 is not supported"},
    ),
)

DECODERS = (
    hf(
        "gpt2",
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 32,
            "use_cache": False,
        },
        kwargs=text_with_last,
    ),
    hf(
        "llama",
        "LlamaForCausalLM",
        DECODER | {"num_key_value_heads": 1},
        kwargs=text,
    ),
    hf(
        "qwen",
        "Qwen3ForCausalLM",
        DECODER | {"num_key_value_heads": 1, "head_dim": 16},
        kwargs=text_with_last,
    ),
    hf(
        "mistral",
        "MistralModel",
        DECODER | {"num_key_value_heads": 2, "sliding_window": 4},
        kwargs=text,
    ),
    hf(
        "llama_with_past",
        "LlamaForCausalLM",
        TEXT | {"num_key_value_heads": 2},
        kwargs=past_and_next,
    ),
    hf(
        "mixtral",
        "MixtralForCausalLM",
        DECODER
        | {
            "num_key_value_heads": 1,
            "num_local_experts": 3,
            "num_experts_per_tok": 2,
            "experts_implementation": "batched_mm",
        },
        kwargs=text,
    ),
    hf(
        "mamba",
        "MambaForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "num_hidden_layers": 2,
            "state_size": 4,
            "use_cache": False,
        },
        kwargs=text_with_last,
    ),
)

ENCODER_DECODERS = (
    hf(
        "t5",
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "d_kv": 16,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 2,
            "use_cache": False,
            "attn_implementation": "eager",
        },
        kwargs=translation,
    ),
    hf("bart", "BartModel", SEQ2SEQ | {"max_position_embeddings": 32}, kwargs=translation),
    hf(
        "whisper",
        "WhisperModel",
        SEQ2SEQ | {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16, "pad_token_id": 0},
        kwargs=transcription,
    ),
)

VISION_AND_SOUND = (
    hf("vit", "ViTForImageClassification", VISION, args=lambda: tuple(images().values())),
    hf(
        "convnext",
        "ConvNextModel",
        {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 2]},
        kwargs=large_images,
    ),
    hf(
        "resnet",
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [16, 24], "depths": [2, 1], "layer_type": "basic"},
        kwargs=large_images,
    ),
    hf(
        "swin",
        "SwinModel",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": 4,
            "attn_implementation": "eager",
        },
        kwargs=large_images,
    ),
    hf(
        "segformer",
        "SegformerForSemanticSegmentation",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
            "num_labels": 5,
        },
        kwargs=large_images,
    ),
    hf(
        "wav2vec2",
        "Wav2Vec2ForCTC",
        SMALL
        | {
            "conv_dim": [16, 16],
            "conv_kernel": [10, 3],
            "conv_stride": [5, 2],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 2,
        },
        kwargs=sound,
    ),
    hf(
        "clip",
        "CLIPModel",
        {
            "text_config": TEXT | {"projection_dim": 16, "eos_token_id": 63, "bos_token_id": 1},
            "vision_config": VISION | {"projection_dim": 16},
            "projection_dim": 16,
        },
        kwargs=text_and_images,
    ),
)

TRANSFORMERS_CASES: tuple[Case, ...] = (*ENCODERS, *DECODERS, *ENCODER_DECODERS, *VISION_AND_SOUND)
