"""The built-in model: a small transformer classifier in plain PyTorch, with nothing to download."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_VOCABULARY = 64
_LENGTH = 16
_WIDTH = 32
_HEADS = 4
_CLASSES = 4


class Embeddings(nn.Module):
    """Tokens and their positions as vectors."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(_VOCABULARY, _WIDTH)
        self.position = nn.Embedding(_LENGTH, _WIDTH)
        self.norm = nn.LayerNorm(_WIDTH)
        self.register_buffer("positions", torch.arange(_LENGTH), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed token ids of shape (batch, length)."""
        position = self.position(self.positions[: tokens.shape[1]])
        embedded: Tensor = self.norm(self.token(tokens) + position)
        return embedded


class Attention(nn.Module):
    """Multi-head attention of a sequence to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(_WIDTH, _WIDTH)
        self.key = nn.Linear(_WIDTH, _WIDTH)
        self.value = nn.Linear(_WIDTH, _WIDTH)
        self.output = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Mix the positions that the mask (batch, 1, 1, length) lets through."""
        query, key, value = (_split(layer(hidden)) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        merged: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return merged


class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(_WIDTH, 4 * _WIDTH)
        self.down = nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform each position by itself."""
        transformed: Tensor = self.down(functional.gelu(self.up(hidden)))
        return transformed


class Block(nn.Module):
    """Attention and MLP, each with a norm before it and a residual around it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(_WIDTH)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(_WIDTH)
        self.mlp = Mlp()

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Run one layer of the encoder."""
        hidden = hidden + self.attention(self.attention_norm(hidden), mask)
        transformed: Tensor = self.mlp(self.mlp_norm(hidden))
        return hidden + transformed


class Head(nn.Module):
    """Class scores from the first position."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.classifier = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, hidden: Tensor) -> Tensor:
        """Score the classes."""
        scores: Tensor = self.classifier(torch.tanh(self.norm(hidden[:, 0])))
        return scores


class DemoModel(nn.Module):
    """A two-block transformer encoder that classifies token sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = Head()

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Classify token ids (batch, length); the boolean mask of that shape is True at real tokens."""
        hidden = self.embeddings(tokens)
        visible = None if mask is None else mask[:, None, None, :]
        for block in self.blocks:
            hidden = block(hidden, visible)
        scores: Tensor = self.head(hidden)
        return scores

    def example_inputs(self) -> dict[str, Tensor]:
        """Return inputs that fit, by the name of the parameter."""
        return demo_inputs()


def build_demo() -> DemoModel:
    """Build the demo model in eval mode, with the same weights each time."""
    # torch.manual_seed would also reseed every accelerator, whose state fork_rng() then has to copy.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return DemoModel().eval()


def demo_inputs(batch: int = 2, length: int = 8) -> dict[str, Tensor]:
    """Return tokens and a mask that hides the last position of the last row."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(_VOCABULARY, (batch, length), generator=generator)
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[-1, -1] = length == 1  # a row with nothing to attend to would be all NaN
    return {"tokens": tokens, "mask": mask}


def _split(hidden: Tensor) -> Tensor:
    batch, length, _ = hidden.shape
    return hidden.view(batch, length, _HEADS, -1).transpose(1, 2)
