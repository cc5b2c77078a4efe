"""The base of all results: `to_dict`, which is what `--json` prints, and the list of the files that were written."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hieronnx.errors import check_known, require
from hieronnx.hierarchy.categories import CATEGORIES
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.hierarchy.shown import write_seen

if TYPE_CHECKING:
    from rich.console import Group

_LONGEST_LINE = 2000
_FIRST_TABLES = ("calls", "modules", "nodes")
_PLAIN = frozenset({str, int, float, bool, type(None)})


class Result:
    """The base of what the tools return, and of the records inside."""

    __slots__ = ()
    _derived: ClassVar[tuple[str, ...]] = ()
    """Properties that `to_dict` has beside the fields."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values, the fields' names as keys: what the command prints with `--json`."""
        return dump_record(self)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the line of `repr`, and the tree of the hierarchy where there is one."""
        hierarchy = getattr(self, "hierarchy", None)
        tree = hierarchy._repr_html_() if isinstance(hierarchy, Hierarchy) else ""
        return f"<pre>{escape(write_seen(repr(self), _LONGEST_LINE))}</pre>{tree}"

    def __rich__(self) -> Group:
        """Return what rich prints: the line of `repr`, and the tree of the hierarchy where there is one."""
        from rich.console import Group
        from rich.text import Text

        hierarchy = getattr(self, "hierarchy", None)
        line = Text(write_seen(repr(self), _LONGEST_LINE))
        return Group(line, hierarchy) if isinstance(hierarchy, Hierarchy) else Group(line)

    def to_pandas(self, of: str | None = None) -> Any:
        """Return one of the result's tables as a pandas DataFrame; pandas must be installed.

        Args:
            of: Which table: a field that holds records, or `nodes` or `calls` of the hierarchy. By default what the
                result says of calls, modules or nodes, or else the nodes of its hierarchy, or else its first records.

        Raises:
            MissingExtraError: If pandas is not installed.
            InputError: If there is no such table.
        """
        require("pandas", "pandas")
        tables, hierarchy = _find_tables(self), getattr(self, "hierarchy", None)
        inherited = ("nodes", "calls") if isinstance(hierarchy, Hierarchy) else ()
        first = (*(name for name in _FIRST_TABLES if name in tables), *inherited, *filter(tables.get, tables), *tables)
        chosen = of or next(iter(first), "")
        check_known("table", chosen, dict.fromkeys((*tables, *inherited)))
        if chosen not in tables and isinstance(hierarchy, Hierarchy):
            return hierarchy.to_pandas(chosen)
        import pandas

        return pandas.json_normalize([_to_builtins(record) for record in tables[chosen]])


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file and its size."""

    path: Path
    bytes: int


def list_files(model: Path | None, sidecar: Path | None) -> tuple[WrittenFile, ...]:
    """List a model, the files that its weights are in, and its sidecar; those of them that are on the disk."""
    from hieronnx.files.wire import read_locations

    if model is None or not model.is_file():
        return ()
    weights = [model.parent / location for location in sorted(read_locations(model))]
    paths = [model, *weights, *([] if sidecar is None else [sidecar])]
    return tuple(WrittenFile(path, path.stat().st_size) for path in paths if path.is_file())


def _find_tables(result: Any) -> dict[str, tuple[Any, ...]]:
    """Return the fields of a result that hold records, by name."""
    values = ((name, getattr(result, name)) for name in _list_names(result.__class__))
    return {name: value for name, value in values if isinstance(value, tuple) and all(map(is_dataclass, value))}


def dump_record(record: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """Return a record as JSON values, but for some of its fields."""
    names = _list_names(record.__class__)
    return {name: _to_builtins(getattr(record, name)) for name in names if name not in without}


@cache
def _list_names(record: Any) -> tuple[str, ...]:
    derived = ("confidence",) if record is Node else getattr(record, "_derived", ())
    return (*derived, *(field.name for field in fields(record)))


def _to_builtins(value: Any) -> Any:
    if value.__class__ is float and not math.isfinite(value):
        return None  # JSON has no such number
    if value.__class__ in _PLAIN:
        return value
    if value.__class__ is CallId:
        return {"module": value.module, "call": value.number}
    if isinstance(value, (tuple, list)):
        return [_to_builtins(item) for item in value]
    if isinstance(value, Hierarchy):
        return {"model": _to_builtins(value.model), "strategy": value.strategy, "summary": summary_to_dict(value)}
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value):
        return dump_record(value)
    if isinstance(value, Mapping):
        return {str(key): _to_builtins(item) for key, item in value.items()}
    return str(value)


def summary_to_dict(hierarchy: Hierarchy) -> dict[str, Any]:
    """Return the sidecar's summary of a hierarchy as JSON values, each category with its threshold.

    What is attributed with less than the least confidence that counts is in `below`.
    """
    import msgspec

    from hieronnx.files.document import summarize

    summary: dict[str, Any] = msgspec.to_builtins(summarize(hierarchy))
    attributed = sum(entry["attributed"] for entry in summary["category_statistics"].values())
    below = len(hierarchy.list_below())
    summary |= {"attributed": attributed, "min_confidence": hierarchy.min_confidence, "below": below}
    for name, entry in summary["category_statistics"].items():
        category = CATEGORIES[name]
        # Not by the rounded percentage: 94.996 would pass for 95.
        under = 100 * entry["attributed"] < category.threshold * entry["total"]
        entry |= {"threshold": category.threshold, "critical": category.critical, "under": under}
    return summary
