"""The calls of a model that is TorchScript itself: scripted, traced, or loaded from a file.

None of its modules runs in Python, so that no call can be seen. But torch inlines their code into one graph, and keeps
for every node the chain of modules whose code it comes from, to the end. A link has a name and a class: `0(Block)`. The
name is the last of the attributes through which the caller reached the module, so that two may have the same:

    x = self.down[0](x)      0(Block).conv(Conv2d)      aten::conv2d, reads down.0.conv.weight
    x = self.up[0](x)        0(Block).conv(Conv2d)      aten::conv2d, reads up.0.conv.weight

The parameters that a node reads then tell which; and what comes in one go with nodes that they tell, for a call runs
without a break. How often one caller calls one module is not
told: these calls are one.

Inside a model that is not TorchScript such a module is seen as a whole. What is inside it is told by parameters alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, groupby
from typing import Any

import torch
from torch import nn

from hieronnx.capture.modules import class_name, parameter_names
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import ROOT, Attribution, CallId
from hieronnx.hierarchy.tags import CallSite

_LINK = re.compile(r"([^.()]+)\(([^()]*)\)")
# A function, and another method of the module that runs already.
_NO_MODULE = ("UNKNOWN_INSTANCE", "SELF")
_NO_WORK = ("prim::Constant", "prim::GetAttr", "prim::CreateObject")


class ScriptedCalls:
    """Reads the calls of a TorchScript model from the nodes of its graphs."""

    def __init__(self, model: nn.Module) -> None:
        paths = {id(module): path for path, module in reversed(list(model.named_modules()))}
        named = list(model.named_modules(remove_duplicate=False))
        self._canonical = {alias: paths[id(module)] for alias, module in named}
        self._ends: dict[tuple[str, str], list[str]] = defaultdict(list)
        """The attribute paths of modules, by their last attribute and their class."""
        for alias, module in named:
            self._ends[alias.rpartition(".")[2], class_name(module)].append(alias)
        self.sites = [CallSite(ROOT, None, "")]
        self._calls: dict[tuple[str, ...], CallId] = {("",): ROOT}
        self._numbers: dict[str, count[int]] = defaultdict(count)

    def attribute(self, node: torch.Node) -> Attribution | None:
        """Attribute a node by its chain alone; None where it has none, or that does not lead to one module."""
        chain = _read_chain(node)
        way = self._follow(chain) if chain else None  # the root's own nodes have none, nor those that torch adds later
        return None if way is None else self._attribute(way, "name")

    def attribute_all(self, nodes: Sequence[torch.Node]) -> list[Attribution | None]:
        """Attribute the nodes of a graph, in the order in which they run, by their chains and parameters."""
        links = [_read_chain(node) for node in nodes]
        owners = [{owner for n in range(node.inputsSize()) if (owner := _owner(node.inputsAt(n)))} for node in nodes]
        found: list[Attribution | None] = [None] * len(nodes)
        working = [index for index, node in enumerate(nodes) if node.kind() not in _NO_WORK]
        for _, same in groupby(working, key=lambda index: self._uncertain(links[index])):
            run = list(same)
            of_run = set().union(*(owners[index] for index in run))
            for index in run:
                certain, by_owner = (self._follow(links[index], known) for known in ((), owners[index] or of_run))
                way = certain or by_owner
                found[index] = None if way is None else self._attribute(way, "name" if certain else "parameter")
        return found

    # -- from chains to modules ---------------------------------------------------------------------------

    def _follow(self, chain: tuple[tuple[str, str], ...], owners: Iterable[str] = ()) -> tuple[str, ...] | None:
        """Return the attribute paths of the modules of a chain, from the root; None where several may be meant.

        Of several, the one that owns what is read is meant.
        """
        way = [""]
        for link in chain:
            below = [path for path in self._ends[link] if _is_below(path, way[-1])]
            if len(below) > 1:
                below = [path for path in below if any(_is_below(f"{owner}.", path) for owner in owners)]
            if len(below) != 1:
                return None
            way.append(below[0])
        return tuple(way)

    def _uncertain(self, chain: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Return the chain up to the first link that may be several modules; nothing where all are certain."""
        return next((chain[:end] for end in range(1, len(chain) + 1) if self._follow(chain[:end]) is None), ())

    # -- from modules to calls ----------------------------------------------------------------------------

    def _attribute(self, way: tuple[str, ...], evidence: str) -> Attribution:
        call = self._call(way)
        return Attribution(call, (call,), evidence)

    def _call(self, way: tuple[str, ...]) -> CallId:
        if way not in self._calls:
            parent, path = self._call(way[:-1]), self._canonical[way[-1]]
            call = self._calls[way] = CallId(path, next(self._numbers[path]))
            self.sites.append(CallSite(call, parent, way[-1]))
        return self._calls[way]


def _is_below(path: str, above: str) -> bool:
    return path.startswith(f"{above}.") if above else path != ""


def _read_chain(node: torch.Node) -> tuple[tuple[str, str], ...]:
    """Return the modules whose code a node comes from, by attribute and class, the outermost first."""
    return tuple(link for link in _LINK.findall(node.getModuleHierarchy()) if link[0] not in _NO_MODULE)


def _owner(value: Any) -> str:
    """Return the path of the module that a value is an attribute of."""
    node, names = value.node(), []
    while node.kind() == "prim::GetAttr":
        names.append(node.s("name"))
        node = node.inputsAt(0).node()
    return ".".join(reversed(names[1:]))


# -- inside a model that is not TorchScript ---------------------------------------------------------------


def refine_by_parameters(
    model: nn.Module, view: View, scopes: Sequence[Attribution | None], sites: Sequence[CallSite]
) -> tuple[list[Attribution | None], tuple[CallSite, ...]]:
    """Give nodes that ran in a TorchScript module to the module below it that owns what they read.

    Return the attributions, and the calls with those that this adds: one for each module in each call around it.
    """
    modules = dict(model.named_modules())
    scripted = {path for path, module in modules.items() if isinstance(module, torch.jit.ScriptModule)}
    if not scripted:
        return list(scopes), tuple(sites)
    added: dict[tuple[CallId, str], CallSite] = {}
    refined = list(scopes)
    for index, owner in enumerate(_find_owners(view, parameter_names(model))):
        around = scopes[index]
        if around is None or owner is None or around.scope.module not in scripted:
            continue
        above = [owner[:end] for end in (*(m.start() for m in re.finditer(r"\.", owner)), len(owner))]
        call = around.scope
        for path in above:
            if _is_below(path, around.scope.module) and hasattr(modules[path], "forward"):  # lists are not called
                number = sum(site.id.module == path for site in added.values())
                site = added.setdefault((around.scope, path), CallSite(CallId(path, number), call, path))
                call = site.id
        refined[index] = Attribution(call, (call,), "parameter") if call != around.scope else around
    return refined, (*sites, *added.values())


def _find_owners(view: View, parameters: Mapping[str, str]) -> list[str | None]:
    """Return for each node the one module whose parameters it reads, also through nodes that read constants alone."""
    named = {t: parameters[name].rpartition(".")[0] for t in view.constants if (name := view.names[t]) in parameters}
    made_of = {tensor: {owner} for tensor, owner in named.items()}
    found: list[str | None] = []
    for node in view.nodes:
        owners = set().union(*(made_of.get(tensor, ()) for tensor in node.reads))
        found.append(next(iter(owners)) if len(owners) == 1 else None)
        made_of.update((tensor, owners) for tensor in node.makes if owners and view.flow.constant[tensor])
    return found
