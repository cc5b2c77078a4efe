"""What an export wrote: its files, and its nodes by evidence and by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from hieronnx.files.document import CategoryEntry, Summary
from hieronnx.files.encoding import summarize
from hieronnx.hierarchy.categories import CATEGORIES
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE
from hieronnx.report.text import count, format_size, make_table, to_text


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file and its size in bytes."""

    path: Path
    size: int


def render_files(files: Sequence[WrittenFile], *, colour: bool = False) -> str:
    """Render where the files are, and how large."""
    table = make_table("file", "size", numbers=("size",))
    for file in files:
        table.add_row(Text(str(file.path)), format_size(file.size))
    return to_text(table, colour=colour)


def render_model(
    hierarchy: Hierarchy, *, forward: Mapping[tuple[str, str], str] | None = None, colour: bool = False
) -> str:
    """Render the inputs and outputs of the file with their types; nothing where the hierarchy does not have them.

    Args:
        hierarchy: Of the file.
        forward: What they are to the module's forward, by kind and name; None where that is nothing to be told.
        colour: Whether to write colours.
    """
    model = hierarchy.model
    if not model:
        return ""
    heading = ", ".join(filter(None, (model["exporter"], f"opset {model['opset'].get('')}")))
    table = make_table(heading, "name", "type", *(["forward"] if forward is not None else []))
    for kind in ("inputs", "outputs"):
        for name, value in model[kind].items():
            sizes = "?" if value["shape"] is None else ", ".join("?" if d is None else str(d) for d in value["shape"])
            role = [] if forward is None else [forward.get((kind, name), "")]
            table.add_row(kind.removesuffix("s"), name, f"{str(value['dtype']).lower()}[{sizes}]", *role)
    return to_text(table, colour=colour)


def render_coverage(hierarchy: Hierarchy, *, colour: bool = False) -> str:
    """Render how many nodes are attributed: in all, by evidence, and by category of operator."""
    summary = summarize(hierarchy)
    if not summary.nodes:
        return "no nodes to attribute"
    attributed = summary.nodes - summary.by_evidence["root"]
    total = f"{attributed:,} of {count(summary.nodes, 'node')} attributed ({summary.coverage:.1f} %)"
    return "\n\n".join([total, _render_evidence(summary, colour), _render_categories(summary, colour)])


def _render_evidence(summary: Summary, colour: bool) -> str:
    numbers = ("nodes", "percent")
    table = make_table("evidence", "confidence", *numbers, numbers=numbers)
    for evidence, nodes in summary.by_evidence.items():
        if nodes:
            percent = f"{100 * nodes / summary.nodes:.1f}"
            table.add_row(evidence, CONFIDENCE[evidence], f"{nodes:,}", percent)
    return to_text(table, colour=colour)


def _render_categories(summary: Summary, colour: bool) -> str:
    numbers = ("nodes", "attributed", "percent", "threshold")
    table = make_table("category", *numbers, "", numbers=numbers)
    for name, category in CATEGORIES.items():
        if entry := summary.category_statistics.get(name):
            mark = Text("under", "bold red") if _is_under(name, entry) else Text("ok", "green")
            counts = (f"{entry.total:,}", f"{entry.attributed:,}", f"{entry.percent:.1f}")
            table.add_row(name, *counts, f"{category.threshold:g}", mark)
    return to_text(table, colour=colour)


def _is_under(name: str, entry: CategoryEntry) -> bool:
    # Not by the rounded percentage: 94.996 would pass for 95.
    return 100 * entry.attributed < CATEGORIES[name].threshold * entry.total


def summary_to_json(hierarchy: Hierarchy) -> dict[str, Any]:
    """Return the sidecar's summary of a hierarchy as JSON values, each category with its threshold."""
    summary = summarize(hierarchy)
    values: dict[str, Any] = msgspec.to_builtins(summary)
    values["category_statistics"] = {
        name: {
            **msgspec.to_builtins(entry),
            "threshold": CATEGORIES[name].threshold,
            "critical": CATEGORIES[name].critical,
            "under": _is_under(name, entry),
        }
        for name, entry in summary.category_statistics.items()
    }
    return values
