"""Sizes that depend on dynamic axes: polynomials in the axes' names, with whole coefficients.

A `Formula` calculates like a number, and stays exact: what is no polynomial (a quotient that leaves a rest, the larger
of two unknown sizes) is an ArithmeticError or a TypeError, and never a wrong number.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hieronnx.graph.sizes import OPERATORS, Operators, evaluate_size
from hieronnx.tools.results import Result

_POWERS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_UNITS = ("", "k", "M", "G", "T", "P")


@dataclass(frozen=True, slots=True)
class Term:
    """One product of a formula: a whole number, and each axis with its power."""

    coefficient: int
    axes: Mapping[str, int]

    def write(self, number: str) -> str:
        """Write the product with this number in front; `1` is left out."""
        powers = ((name, str(power).translate(_POWERS) if power > 1 else "") for name, power in self.axes.items())
        factors = [] if number == "1" and self.axes else [number]
        return " × ".join([*factors, *(f"{name}{power}" for name, power in powers)])


@dataclass(frozen=True, slots=True)
class Formula(Result):
    """A polynomial in the names of dynamic axes that is no plain number.

    Attributes:
        terms: the products that it is the sum of, those of the highest degree first.
    """

    terms: tuple[Term, ...]

    def __add__(self, other: Size) -> Size:
        return _sum([*self.terms, *_terms(other)])

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: int) -> Size:
        return self * -1 + other

    def __mul__(self, other: Size) -> Size:
        return _sum(
            Term(a.coefficient * b.coefficient, Counter(a.axes) + Counter(b.axes))
            for a in self.terms
            for b in _terms(other)
        )

    def __floordiv__(self, other: Size) -> Size:
        """Divide where that leaves a rest in the number alone, which is rounded down."""
        if self == other:
            return 1
        if not isinstance(other, int) or any(term.coefficient % other for term in self.terms if term.axes):
            raise ArithmeticError(f"({self}) // ({other}) is no polynomial")
        return _sum(Term(term.coefficient // other, term.axes) for term in self.terms)

    __radd__ = __add__
    __rmul__ = __mul__

    @property
    def weight(self) -> int:
        """The value where every axis has size 1: what formulas are sorted by."""
        return sum(term.coefficient for term in self.terms)

    def write(self, number: Callable[[int], str]) -> str:
        """Write the formula with its numbers in some form."""
        text = " + ".join(term.write(number(term.coefficient)) for term in self.terms)
        return text.replace("+ -", "- ")

    def __str__(self) -> str:
        return self.write(lambda value: f"{value:,}")

    def to_dict(self) -> dict[str, object]:
        """Return the formula as JSON values: as text, and its terms."""
        terms = [{"coefficient": term.coefficient, "axes": dict(term.axes)} for term in self.terms]
        return {"text": str(self), "terms": terms}


Size: TypeAlias = int | Formula


def _terms(size: Size) -> tuple[Term, ...]:
    return size.terms if isinstance(size, Formula) else (Term(size, {}),)


def _sum(terms: Iterable[Term]) -> Size:
    """Add products up; a sum without an axis is a number."""
    sums: Counter[tuple[tuple[str, int], ...]] = Counter()
    for term in terms:
        sums[tuple(sorted(term.axes.items()))] += term.coefficient
    ordered = sorted(sums.items(), key=lambda item: (-sum(power for _, power in item[0]), item[0]))
    kept = tuple(Term(coefficient, dict(axes)) for axes, coefficient in ordered if coefficient)
    return Formula(kept) if any(term.axes for term in kept) else sum(term.coefficient for term in kept)


def _raise(base: Size, power: Size) -> Size:
    if not isinstance(power, int) or not 0 <= power <= 8:
        raise ArithmeticError(f"({base}) ** ({power}) is no polynomial")
    result: Size = 1
    for _ in range(power):
        result = result * base
    return result


def multiply(*sizes: Size) -> Size:
    """Multiply sizes."""
    product: Size = 1
    for size in sizes:
        product = product * size
    return product


def add(*sizes: Size) -> Size:
    """Add sizes up, all at once: there may be thousands."""
    return _sum(term for size in sizes for term in _terms(size))


# -- reading and writing ----------------------------------------------------------------------------------


_OPERATORS: Operators = {**OPERATORS, ast.Pow: _raise}


def read_size(text: str, axes: Collection[str], sizes: Mapping[str, int]) -> Size | None:
    """Read a size as exporters write it, `batch` or `2*batch + 1`; None where it is made of anything but known axes."""
    known = {name: sizes.get(name, Formula((Term(1, {name: 1}),))) for name in {*axes, *sizes}}
    size: Size | None = evaluate_size(text, known, _OPERATORS)
    return size


def broadcast(a: Size, b: Size) -> Size:
    """Return the size of two axes together: equal ones, or one of them 1.

    Raises:
        ValueError: If they do not fit, or that cannot be told.
    """
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    whole = [size for size in (a, b) if isinstance(size, int)]
    if len(whole) != 1:
        raise ValueError(f"sizes {a} and {b} do not fit")
    return whole[0]  # the dynamic one can only be this, or 1


def shorten(value: int) -> str:
    """Write a number in three digits, where it has more than five: `1,024`, `72.2M`."""
    if abs(value) < 100_000:
        return f"{value:,}"
    scaled, unit = float(value), 0
    while abs(scaled) >= 999.5 and unit < len(_UNITS) - 1:
        scaled, unit = scaled / 1000, unit + 1
    return f"{scaled:.3g}{_UNITS[unit]}"
