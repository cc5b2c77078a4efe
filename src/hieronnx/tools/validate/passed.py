"""The tensors that calls are said to have received and returned are tensors of the file."""

from __future__ import annotations

from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.tools.validate.findings import Finding, call_place

_REMEDY = "export the model anew; a tool that renamed the tensor should have carried the hierarchy along"


def check_passed(hierarchy: Hierarchy, view: View) -> list[Finding]:
    """Check that every tensor that a call received or returned exists."""
    graphs = [graph.key for graph in view.graphs]
    known = {(graphs[graph], name) for graph, name in zip(view.tensor_graphs, view.names, strict=True)}
    found = []
    for call in hierarchy.calls:
        for what, passed in (("received", call.received), ("returned", call.returned)):
            for item in passed or ():
                if item.tensor is not None and (item.graph, item.tensor) not in known:
                    message = f"it {what} '{item.tensor}', which is no tensor of the file"
                    found.append(Finding("passed-tensors", "error", call_place(call.id), message, _REMEDY))
    return found
