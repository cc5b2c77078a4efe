"""Who calls which module, how often, and by which name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 8


class Block(nn.Module):
    """One linear map and an activation: the leaf of most cases."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Holder(nn.Module):
    """Calls a block that it was given, then does something of its own."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) * 1.5


class SharedUnderTwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class SharedUnderTwoParents(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = Block()
        self.left = Holder(block)
        self.right = Holder(block)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x + 1.0)


class SharedAndCalledByLaterName(nn.Module):
    """The canonical name `first` is never used: the only call goes through `second.block`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = Holder(self.first)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x) - x


class SharedAtTwoDepths(nn.Module):
    """A block is called by the root and, two levels down, by a grandchild."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = Holder(Holder(Block()))
        self.near = self.deep.block.block

    def forward(self, x: Tensor) -> Tensor:
        return self.deep(self.near(x))


class SharedActivation(nn.Module):
    """One activation without parameters stands three times in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.ReLU()
        self.body = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), act, nn.Linear(WIDTH, WIDTH), act, nn.Linear(WIDTH, WIDTH), act
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class CalledInLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = Block()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.cell(x) + 0.5
        return x


class CallsInterleaved(nn.Module):
    """Two modules take turns: a, b, a, b."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Block()
        self.b = Block()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.b(self.a(x))
        return x


class CallsChildTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x) + 0.25)


class NestedRepeatedCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outer = CallsChildTwice()

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.outer(x) * 2.0)


class CallsItself(nn.Module):
    """A recursive module: each call but the first has a call of the same module for a parent."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        x = torch.tanh(self.linear(x))
        return self(x, depth - 1) if depth else x


class RecursiveChild(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = CallsItself()

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x) + x


class GrandchildCalledDirectly(nn.Module):
    """The root calls `holder.block`; `holder` itself never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.holder = Holder(Block())

    def forward(self, x: Tensor) -> Tensor:
        return self.holder.block(x) + x


class SiblingBorrowed(nn.Module):
    """A child keeps a reference to its sibling's child without owning it, and calls it."""

    class Borrower(nn.Module):
        def __init__(self, lender: nn.Module) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.borrowed = [lender]

        def forward(self, x: Tensor) -> Tensor:
            return self.borrowed[0](self.linear(x))

    def __init__(self) -> None:
        super().__init__()
        self.lender = Holder(Block())
        self.borrower = self.Borrower(self.lender.block)

    def forward(self, x: Tensor) -> Tensor:
        return self.borrower(self.lender(x))


class OtherMethodThanForward(nn.Module):
    """Works through `child.encode`, which is no call of `child`; its `linear` is called all the same."""

    class Codec(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def encode(self, x: Tensor) -> Tensor:
            return torch.sigmoid(self.linear(x)) * 3.0

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Codec()

    def forward(self, x: Tensor) -> Tensor:
        return self.child.encode(x) - x


class ForwardCalledDirectly(nn.Module):
    """`child.forward(x)` runs no hooks, so that a hook never sees the call."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Block()
        self.tail = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.child.forward(x))


class UnregisteredModule(nn.Module):
    """Modules kept in a plain list are called, and appear in no `named_modules()`."""

    def __init__(self) -> None:
        super().__init__()
        # Frozen, because TorchScript takes their parameters for constants.
        self.hidden = [Block().requires_grad_(False), Block().requires_grad_(False)]
        self.last = Block()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.hidden:
            x = block(x)
        return self.last(x)


class UnusedModules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.never = Block()
        self.used = Block()
        self.also_never = nn.ModuleList([Block(), nn.Linear(3, 3)])

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class ThirtyLevelsDeep(nn.Module):
    """Thirty levels, one in the other, round one block; each adds something of its own."""

    class Level(nn.Module):
        def __init__(self, child: nn.Module) -> None:
            super().__init__()
            self.child = child

        def forward(self, x: Tensor) -> Tensor:
            return self.child(x) + 0.1

    def __init__(self) -> None:
        super().__init__()
        self.child: nn.Module = Block()
        for _ in range(30):
            self.child = self.Level(self.child)

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x)


class KeywordOnlyMix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, *, left: Tensor, right: Tensor, scale: float = 1.0) -> Tensor:
        return self.linear(left) * scale + right


class KeywordOnlyChild(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = KeywordOnlyMix()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.mix(right=x, left=y, scale=0.3)


class KeywordOnlyRoot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = KeywordOnlyMix()

    def forward(self, *, x: Tensor, y: Tensor) -> Tensor:
        return self.mix(right=x, left=y, scale=0.3)


class ReturnsDict(nn.Module):
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(WIDTH, 3)
            self.two = nn.Linear(WIDTH, 4)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"one": self.one(x), "two": torch.softmax(self.two(x), dim=-1)}

    def __init__(self) -> None:
        super().__init__()
        self.heads = self.Heads()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        heads = self.heads(x)
        return {"one": heads["one"] + 1.0, "two": heads["two"]}


class ReturnsNested(nn.Module):
    """A child returns a tuple with a list in it, and so does the root."""

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, 3 * WIDTH)

        def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
            first, *rest = self.linear(x).chunk(3, dim=-1)
            return first, list(rest)

    def __init__(self) -> None:
        super().__init__()
        self.split = self.Split()
        self.block = Block()

    def forward(self, x: Tensor) -> tuple[Tensor, list[Any]]:
        first, (second, third) = self.split(x)
        return self.block(first), [second + third, (third,)]


class DropoutAndIdentity(nn.Module):
    """Modules that are called and leave no node behind, before, between and after ones that do."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Identity()
        self.block = Block()
        self.dropout = nn.Dropout(0.5)
        self.paths = nn.Sequential(nn.Identity(), nn.Dropout(0.1), Block(), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.paths(self.dropout(self.block(self.before(x)))))


class Hooked(nn.Module):
    """The user's own hooks change what one block takes and another returns."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = Block()
        self.first.register_forward_hook(lambda _module, _args, output: output * 2.0 + 1.0)
        self.second.register_forward_pre_hook(lambda _module, args: (torch.sin(args[0]),))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class SameClassName(nn.Module):
    """Siblings of two different classes that have one name."""

    def __init__(self) -> None:
        super().__init__()
        doubling = type("Unit", (Block,), {"forward": lambda self, x: self.linear(x) * 2.0})
        squaring = type("Unit", (Block,), {"forward": lambda self, x: self.linear(x) ** 2})
        self.doubling = doubling()
        self.squaring = squaring()

    def forward(self, x: Tensor) -> Tensor:
        return self.squaring(self.doubling(x))


class ReplayedOnSameInput(nn.Module):
    """Two calls of a module on the same input: equal computations, which an optimizer may merge into one."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) + torch.relu(self.block(x))
