"""Operators that exporters fold, fuse, merge or rewrite, and unusual inputs and outputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ._calls import WIDTH, Block


class RootSlicing(nn.Module):
    """Slices in the root's own forward, and no module at all."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x[1:4], x[::2], x[1:-1]


class RootSlicingAroundModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x[1:4])[::2] + self.block(x[1:-1])[2:]


class SlicingInChild(nn.Module):
    """The same slice in the root and in its child."""

    class Window(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x[1:4])

    def __init__(self) -> None:
        super().__init__()
        self.window = self.Window()

    def forward(self, x: Tensor) -> Tensor:
        return self.window(x) + x[1:4]


class SelfAttention(nn.Module):
    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        split = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(split[0], split[1], split[2], attn_mask=mask)
        return self.out(attended.transpose(1, 2).flatten(2))


class ScaledDotProductAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = SelfAttention()
        self.second = SelfAttention()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) + x)


class MaskInEveryLayer(nn.Module):
    """Each layer computes the same mask, so that an optimizer keeps one copy for all layers."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = SelfAttention()
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e4
            return self.norm(x + self.attention(x, bias))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


class FunctionalOnChildWeight(nn.Module):
    """The root computes with its children's weights and never calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.child.weight, self.child.bias)
        return F.layer_norm(x, (WIDTH,), self.norm.weight, self.norm.bias)


class ConvBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class ConvBatchNormSequential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5), nn.ReLU6()),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class ConvBatchNormChain(nn.Module):
    """Pairs of a Conv and a BatchNorm right after each other, in one module and across modules."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x))

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
        self.pairs = nn.ModuleList(self.Pair() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.flat(x)
        for pair in self.pairs:
            x = pair(x)
        return x


class ConvBatchNormResidual(nn.Module):
    """Folded convolutions on both arms of a residual, and a convolution that is normed by its parent."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(4)
            self.conv2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(4)
            self.shortcut = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))

        def forward(self, x: Tensor) -> Tensor:
            y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(y + self.shortcut(x))

    def __init__(self) -> None:
        super().__init__()
        self.block = self.Residual()
        self.head = nn.Conv2d(4, 2, 1)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.head(self.block(x))).mean((2, 3))


class ConvBatchNormBottlenecks(nn.Module):
    """Folded convolutions with nothing between them and the next block, which a later residual reads as well."""

    class Pair(nn.Module):
        def __init__(self, channels: int, wide: int, groups: int = 1) -> None:
            super().__init__()
            self.conv = nn.Conv2d(channels, wide, 1, groups=groups, bias=False)
            self.norm = nn.BatchNorm2d(wide)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x))

    class Bottleneck(nn.Module):
        def __init__(self, residual: bool) -> None:
            super().__init__()
            self.widen = ConvBatchNormBottlenecks.Pair(3, 6)
            self.filter = ConvBatchNormBottlenecks.Pair(6, 6, groups=6)
            self.narrow = ConvBatchNormBottlenecks.Pair(6, 3)
            self.residual = residual

        def forward(self, x: Tensor) -> Tensor:
            y = self.narrow(torch.relu(self.filter(torch.relu(self.widen(x)))))
            return x + y if self.residual else y

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.Bottleneck(False), self.Bottleneck(True), self.Bottleneck(True)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class ConstantFoldedBranch(nn.Module):
    """A child computes from buffers alone, so that folding leaves an initializer and no node of it."""

    class Positions(nn.Module):
        inverse: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("inverse", torch.rand(WIDTH // 2))

        def forward(self) -> Tensor:
            angles = torch.arange(4, dtype=torch.float32)[:, None] * self.inverse
            return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def __init__(self) -> None:
        super().__init__()
        self.positions = self.Positions()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x + self.positions())


class TiedWeights(nn.Module):
    """One parameter is an embedding table and an output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, WIDTH)
        self.block = Block()
        self.head = nn.Linear(WIDTH, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(ids)))


class InPlaceOps(nn.Module):
    class Overwrite(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x[:, 0] = x[:, 1] * 2.0
            return x.mul_(0.5)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.act = nn.ReLU(inplace=True)
        self.overwrite = self.Overwrite()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.linear(x))
        y.add_(x)
        y = self.overwrite(y)
        y[:, 2:4] = 1.5
        return y.relu_()


class BiasAddedByParent(nn.Module):
    """A child multiplies and its parent adds: a fusion into one Gemm crosses modules."""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    def __init__(self) -> None:
        super().__init__()
        self.product = self.Product()
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.product(x) + self.bias)


class LayerNormByHand(nn.Module):
    """A layer norm written out over two modules, which an optimizer may make one LayerNormalization."""

    class Standardise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)

    class Affine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH))
            self.bias = nn.Parameter(torch.randn(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight + self.bias

    def __init__(self) -> None:
        super().__init__()
        self.standardise = self.Standardise()
        self.affine = self.Affine()

    def forward(self, x: Tensor) -> Tensor:
        return self.affine(self.standardise(x))


class GeluByHand(nn.Module):
    """Patterns that ONNX Runtime fuses, split between a child and its parent."""

    class Erf(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.erf(x / 2.0**0.5) + 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.erf = self.Erf()

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return 0.5 * x * self.erf(x)


class NormStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.group = nn.GroupNorm(2, 4)
        self.batch = nn.BatchNorm1d(4)
        self.instance = nn.InstanceNorm1d(4, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.instance(torch.sin(self.batch(torch.tanh(self.group(x)))))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out, (hidden, _cell) = self.lstm(x)
        return self.head(out), hidden


class GruBidirectional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0])


class TransformerEncoder(nn.Module):
    """The stock encoder, whose fast path hides its children from hooks."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, dim_feedforward=16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


class MultiheadAttention(nn.Module):
    """`out_proj` is owned by the attention, and never called."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        y, weights = self.attention(x, x, x, key_padding_mask=padding)
        return self.norm(x + y), weights


class IntegerInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, WIDTH)
        self.block = Block()

    def forward(self, ids: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        shifted = (ids + offset) % 10
        return self.block(self.embedding(shifted)), shifted


class BoolInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        return self.block(x).masked_fill(~keep, -1.0), keep.any(-1)


class HalfInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block().half()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) + x


class GatheredBags(nn.Module):
    """Rows of a table are gathered and averaged over each bag, by weight."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(10, WIDTH))

        def forward(self, ids: Tensor, weights: Tensor) -> Tensor:
            return (self.table[ids] * weights[..., None]).sum(1)

    def __init__(self) -> None:
        super().__init__()
        self.bag = self.Bag()
        self.block = Block()

    def forward(self, ids: Tensor, weights: Tensor) -> Tensor:
        return self.block(self.bag(ids, weights))


class InputAsOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.block(x), x


class SameOutputTwice(nn.Module):
    """One tensor is returned twice, and is also what the child returned."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.block(x)
        return y, y, y + x


class UnusedInput(nn.Module):
    """The TorchScript exporter drops the unused input; the dynamo exporter keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, unused: Tensor, x: Tensor) -> Tensor:
        return self.block(x)


class EqualParameters(nn.Module):
    """Two children own equal but separate parameters, which de-duplication may merge."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH)

    def equalise(self) -> nn.Module:
        self.right.load_state_dict(self.left.state_dict())
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + torch.relu(self.right(x * 2.0))
