"""Small modules that hand tensors to one another in all ways that there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

X = torch.linspace(-1.5, 2.0, 12).reshape(3, 4)


class Affine(nn.Module):
    """Computes what no other module here does to the same tensor."""

    def __init__(self, scale: float = 1.3) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * self.scale


class Twice(nn.Module):
    """Calls one module under two names, twice under one of them, in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = Affine()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.first(x) + 1
        return self.second(x)


class Takes(nn.Module):
    """Takes tensors in all ways that there are."""

    def forward(
        self, x: Tensor, /, y: Tensor, *rest: Tensor, mask: Tensor | None = None, **more: Any
    ) -> dict[str, Any]:
        total = x * y + sum(rest) + more["pair"][0] * more["pair"][1]["deep"]
        return {"total": total, "parts": (total - 1, [total.sin()]), "nothing": None, "given": y}


class Gives(nn.Module):
    """Hands tensors over by position, by keyword, one twice, inside structures, and none where one could be."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.takes = Affine(), Takes()

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        found = self.takes(x, y, y, x, pair=(y + 1, {"deep": y + 2}), size=3, mask=None)
        return found["total"] + found["parts"][1][0] + found["given"]


@dataclass
class Held:
    """Holds tensors without telling torch."""

    name: str
    tensors: list[Tensor]


class TakesObject(nn.Module):
    """Takes and gives objects that torch does not know."""

    def forward(self, held: Held) -> Held:
        return Held("new", [held.tensors[0] * 2, held.tensors[1]])


@dataclass(slots=True)
class Slotted:
    """Holds tensors without a dictionary."""

    first: Tensor
    others: deque[Tensor]


class TakesSlots(nn.Module):
    """Takes and gives objects that have slots."""

    def forward(self, held: Slotted) -> Slotted:
        return Slotted(held.first * 2, deque([held.others[0] - held.first]))


class GivesSlots(nn.Module):
    """Hands tensors over inside an object that has slots."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.takes = Affine(), TakesSlots()

    def forward(self, x: Tensor) -> Tensor:
        found = self.takes(Slotted(self.inner(x), deque([x])))
        return found.first + found.others[0]


class GivesObject(nn.Module):
    """Hands tensors over inside an object."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.takes = Affine(), TakesObject()

    def forward(self, x: Tensor) -> Tensor:
        found = self.takes(Held("old", [self.inner(x), x]))
        return found.tensors[0] + found.tensors[1]


class InPlace(nn.Module):
    """Changes a tensor between two calls that take it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Affine()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sin(x)
        before = self.inner(h)
        h.add_(1.0)
        return before + self.inner(h)


class Sums(nn.Module):
    """Adds to a tensor of its own in place, and returns it through a module that does nothing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sin(x)
        h += torch.cos(x)
        return self.dropout(h)


class InPlaceElsewhere(nn.Module):
    """Changes another tensor between two calls that pass one on."""

    def __init__(self) -> None:
        super().__init__()
        self.sums, self.inner = Sums(), Affine()

    def forward(self, x: Tensor) -> Tensor:
        h = self.sums(x)
        other = torch.exp(x)
        other.clamp_(0.5, 2.0)
        return self.inner(h) + other


class Doubles(nn.Module):
    """Changes its own argument and returns it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2.0)


class InPlaceInside(nn.Module):
    """Calls a module that changes what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.doubles = Affine(), Doubles()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sin(x)
        first = self.inner(h)
        self.doubles(h)
        return first + self.inner(h) + self.doubles(h)


class Alias(nn.Module):
    """Changes a tensor through another that shares its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Affine()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sin(x)
        row = h[0]
        before = self.inner(row)
        h.add_(1.0)
        return before + self.inner(row) + self.inner(h).sum()


class HandsOn(nn.Module):
    """Returns what it takes."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y, x


class PassedOn(nn.Module):
    """Calls modules that compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.swap, self.dropout, self.identity = Affine(), HandsOn(), nn.Dropout(0.5), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.swap(self.inner(x), x)
        return self.dropout(a) - self.identity(self.dropout(b)) * 3


class Weighted(nn.Module):
    """Takes a weight, and returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.linspace(0.1, 1.6, 16).reshape(4, 4))

    def forward(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return x @ weight, self.own


class Weights(nn.Module):
    """Hands a parameter, a buffer and plain tensors to modules."""

    def __init__(self) -> None:
        super().__init__()
        self.weighted = Weighted()
        self.given = nn.Parameter(torch.linspace(-1, 2, 16).reshape(4, 4))
        self.register_buffer("kept", torch.linspace(3, 4, 16).reshape(4, 4))
        self.plain = torch.linspace(5, 6, 16).reshape(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, own = self.weighted(x, self.given)
        b, _ = self.weighted(a, self.kept)
        c, _ = self.weighted(b @ own, self.plain)
        d, _ = self.weighted(c, torch.eye(4) * 2)
        return d


class Turned(nn.Module):
    """Turns its argument."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)


class Cancelled(nn.Module):
    """Turns a tensor in one module, and back in the next."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.there, self.back = Affine(), Turned(), Turned()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.back(self.there(self.inner(x)))).reshape(-1).reshape(3, 4) + 1


class Hooked(nn.Module):
    """Has modules whose hooks replace what they take and give."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Affine(), Affine(0.7)
        self.inner.register_forward_pre_hook(lambda _module, args: (args[0] + 10,))
        self.last.register_forward_hook(lambda _module, _args, result: result - 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x) * 2)


class Pieces(nn.Module):
    """Gives each piece of a tensor to a module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.narrow = Affine(), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.inner(x).chunk(2, dim=-1)
        return self.narrow(left) + self.narrow(right)


class PiecesInPlace(nn.Module):
    """Gives each piece of a tensor that was written to, turned and not, to a module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act, self.narrow, self.turned = (
            Affine(),
            nn.SiLU(inplace=True),
            nn.Linear(2, 2),
            nn.Linear(3, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.inner(x))
        left, right = h.chunk(2, dim=-1)
        return self.narrow(left) + self.narrow(right) + self.turned(h.t()[1:]) + self.narrow(h[:, 1:3])


class SameView(nn.Module):
    """Gives the same form of a tensor that was written to, made by two operations, to two modules, and writes again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act, self.first, self.second = Affine(), nn.SiLU(inplace=True), Affine(), Affine()

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.inner(x))
        y = self.first(h.unsqueeze(0)) + self.second(h.view(1, 3, 4))
        h[0] = 0
        return y + self.first(h.unsqueeze(0))


class Extremes(nn.Module):
    """Returns both results of one operation, of the same sizes; its caller reads one."""

    class Both(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            lowest, highest = torch.aminmax(x, dim=-1, keepdim=True)
            return lowest, highest

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.both = Affine(), self.Both()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.both(self.inner(x))[0])


class State(nn.Module):
    """Hands what a cell returned to its next call; the exporters see the inside of the cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.abs()
        for step in range(3):
            h, c = self.cell(x + step, (h, c))
        return h


class Branches(nn.Module):
    """Calls modules before, inside and after a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = Affine(), Affine(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        y = torch.cond(y.sum() > 0, lambda t: self.inner(t) + 1, lambda t: self.other(t) - 1, (y,))
        return self.other(y)


MODELS: dict[str, Callable[[], nn.Module]] = {
    model.__name__: model
    for model in (
        Twice,
        Gives,
        GivesObject,
        GivesSlots,
        InPlace,
        InPlaceElsewhere,
        InPlaceInside,
        Alias,
        PassedOn,
        Weights,
        Cancelled,
        Hooked,
        Pieces,
        PiecesInPlace,
        SameView,
        Extremes,
        State,
        Branches,
    )
}
