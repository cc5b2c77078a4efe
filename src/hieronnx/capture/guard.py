"""Whose error it is: torch's and the model's, or that of what hieronnx runs while torch exports.

Observers run inside torch, which may wrap what they raise, try another way, or hide it. So a guard is around each
observer, and nothing else: it keeps the first error that one raises, and what torch makes of that does not matter.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import torch

from hieronnx.errors import HieronnxError

P = ParamSpec("P")
T = TypeVar("T")

EXCLUSIVE: AbstractContextManager[Any] = threading.RLock()
"""Lets one export at a time observe torch: what is wrapped is the same for the whole process."""
OLDEST_TESTED, NEWEST_TESTED = (2, 10), (2, 15)
"""The first two numbers of the torch versions that hieronnx was tested with."""


class TorchFailedError(Exception):
    """torch could not export the model; the cause is what torch, or the model, raised."""


class ObserverError(Exception):
    """An observer failed, or does not fit this torch; the cause, if there is one, is what it raised."""


class Guard:
    """Tells errors of observers from those of torch, for one export."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    def __call__(self, observe: Callable[P, T]) -> Callable[P, T]:
        """Return an observer that keeps the error it raises."""

        @wraps(observe)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return observe(*args, **kwargs)
            except Exception as error:
                self._error = self._error or error
                raise

        return call

    @contextmanager
    def running_torch(self) -> Iterator[None]:
        """Let torch export.

        Raises:
            TorchFailedError: torch or the model failed.
            ObserverError: An observer failed, whatever became of that in torch.
        """
        try:
            yield
        except Exception as error:
            self._check()
            if isinstance(error, HieronnxError | MemoryError):
                raise
            raise TorchFailedError from error
        self._check()

    def _check(self) -> None:
        if isinstance(self._error, HieronnxError | MemoryError):
            raise self._error
        if self._error is not None:
            raise ObserverError("an observer failed") from self._error


def find_holder(owner: str) -> Any:
    """Return the module, or the class in it, that has a function of torch: `package.module` or `package.module:Class`.

    Raises:
        ObserverError: If this version of torch has no such thing.
    """
    module, _, name = owner.partition(":")
    try:
        return getattr(import_module(module), name) if name else import_module(module)
    except (ImportError, AttributeError) as error:
        raise ObserverError(f"torch has no {owner.replace(':', '.')}, which hieronnx observes") from error


@contextmanager
def wrapped(owner: str, name: str, run: Callable[..., Any]) -> Iterator[None]:
    """Let `run(original, *args, **kwargs)` take the place of a function of torch while the context lasts."""
    holder = find_holder(owner)
    original = getattr(holder, name, None)
    if original is None:
        raise ObserverError(f"torch has no {owner.replace(':', '.')}.{name}, which hieronnx observes")

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(original, *args, **kwargs)

    setattr(holder, name, call)
    try:
        yield
    finally:
        setattr(holder, name, original)


def around(
    guard: Guard,
    owner: str,
    name: str,
    before: Callable[..., Any] | None = None,
    after: Callable[..., None] | None = None,
    leave: Callable[[Any], None] | None = None,
) -> AbstractContextManager[None]:
    """Observe each run of a function of torch: all that is called here is ours, but the function itself.

    Args:
        guard: Keeps what an observer raises.
        owner: Where the function is.
        name: The function.
        before: Called with its arguments; what it returns is the token of this run.
        after: Called with the token, the result and the arguments, unless it raised.
        leave: Called with the token in the end, also if it raised.
    """
    begin, end, finish = (guard(observe) if observe else None for observe in (before, after, leave))

    def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        token = begin(*args, **kwargs) if begin else None
        try:
            result = original(*args, **kwargs)
            if end:
                end(token, result, *args, **kwargs)
            return result
        finally:
            if finish:
                finish(token)

    return wrapped(owner, name, run)


def newer_than_tested(version: str | None = None) -> bool:
    """Say whether torch is newer than those that hieronnx was tested with."""
    return _first_two(version) > NEWEST_TESTED


def older_than_tested(version: str | None = None) -> bool:
    """Say whether torch is older than those that hieronnx was tested with."""
    return _first_two(version) < OLDEST_TESTED


def _first_two(version: str | None) -> tuple[int, ...]:
    numbers = re.findall(r"\d+", torch.__version__ if version is None else version)
    return tuple(map(int, numbers[:2]))
