"""Bodies in the graph: conditions, loops and scripted functions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop

from ._calls import WIDTH, Block


class Cond(nn.Module):
    """An If whose branches call submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.before = Block()
        self.positive = Block()
        self.negative = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return torch.cond(x.sum() > 0, lambda x: self.positive(x) + 1.0, lambda x: self.negative(x) * 2.0, (x,))


class NestedCond(nn.Module):
    """An If in a branch of an If, inside a child, with submodules at both levels."""

    class Chooser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.outer = Block()
            self.inner = Block()
            self.other = Block()

        def forward(self, x: Tensor) -> Tensor:
            def nested(x: Tensor) -> Tensor:
                x = self.outer(x)
                return torch.cond(x.mean() > 0.1, lambda x: self.inner(x), lambda x: self.other(x) - 1.0, (x,))

            return torch.cond(x.sum() > -100, nested, lambda x: self.other(x), (x,))

    def __init__(self) -> None:
        super().__init__()
        self.chooser = self.Chooser()
        self.after = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.chooser(x))


class WhileLoop(nn.Module):
    """A Loop whose body calls a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        def unfinished(i: Tensor, x: Tensor) -> Tensor:
            return i < 3

        def step(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, self.block(x) + 0.5

        return while_loop(unfinished, step, (torch.tensor(0), x))[1]


@torch.jit.script
def halve_or_double(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return x / 2.0
    return x * 2.0


@torch.jit.script
def add_rows(x: Tensor, rows: Tensor) -> Tensor:
    for i in range(rows.size(0)):
        x = torch.tanh(x + rows[i])
    return x


class ScriptedIf(nn.Module):
    class Chooser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return halve_or_double(self.linear(x))

    def __init__(self) -> None:
        super().__init__()
        self.chooser = self.Chooser()
        self.after = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.chooser(x))


class ScriptedLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.block(add_rows(x, self.block(rows)))


class ScriptedRoot(nn.Module):
    """Compiled as a whole by the case's build, with submodules called in both branches."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = Block()
        self.negative = nn.Linear(WIDTH, WIDTH)
        self.after = Block()

    def forward(self, x: Tensor) -> Tensor:
        y = self.positive(x) if bool(x.mean() > 0) else self.negative(x) - 1.0
        return self.after(y)
