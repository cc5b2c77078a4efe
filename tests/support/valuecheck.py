"""The value check: is each ONNX tensor attributed to a call that made it? Knows nothing of scopes or names.

The file runs in ONNX Runtime, unoptimized, with every tensor exposed; the model runs in PyTorch with every
operation logged by `eager_oracle`, which shares nothing with hieronnx. A tensor is then looked up by its values alone
among all that PyTorch made.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from support.eager_oracle import EagerRun, Scope, run_model

Attributed = Mapping[tuple[str, str], frozenset[Scope]]
NameBody = Callable[[str, onnx.NodeProto, str], str]
Origins = dict[str, tuple[str, onnx.NodeProto]]
"""For each tensor of the flattened file, the graph and the node that it has in the file as written."""

RTOL, ATOL = 1e-3, 1e-5
HALF_RTOL, HALF_ATOL = 1e-2, 1e-3
MASKED = 1e30
"""From here on a number stands for infinity, as finfo.min does in attention masks."""


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """One output of one node: the calls it is attributed to, and those that made a tensor of these values."""

    graph: str
    output: str
    op_type: str
    attributed: frozenset[Scope]
    made_by: frozenset[Scope]

    def __str__(self) -> str:
        where = f"{self.graph}:{self.output}" if self.graph else self.output
        return f"{self.op_type} {where}: attributed to {_text(self.attributed)}, made by {_text(self.made_by)}"


@dataclass(frozen=True, slots=True)
class ValueReport:
    """The verdict on every node output that could be seen, and what could not."""

    right: tuple[NodeCheck, ...]
    """Some call that made these values is among those attributed."""
    wrong: tuple[NodeCheck, ...]
    """These values were made, and by none of the calls attributed."""
    unmatched: tuple[NodeCheck, ...]
    """PyTorch made no such values, or the node moves values that the attributed call had but did not make."""
    trivial: tuple[NodeCheck, ...]
    """Values so plain that equality says nothing."""
    unexposed: tuple[str, ...]
    """What could not be seen, and why."""

    def summary(self, limit: int = 20) -> str:
        """Return the counts, and the wrong ones line by line."""
        verdicts = ("right", "wrong", "unmatched", "trivial")
        counts = ", ".join(f"{len(getattr(self, verdict))} {verdict}" for verdict in verdicts)
        # An attribution to every call would never be wrong: the number of calls a node must stay near 1.
        calls = [len(check.attributed) for check in (*self.right, *self.wrong)]
        lines = [f"{counts}; {sum(calls) / max(len(calls), 1):.2f} calls attributed per checked output"]
        lines += [f"  wrong: {check}" for check in self.wrong[:limit]]
        if len(self.wrong) > limit:
            lines.append(f"  and {len(self.wrong) - limit} more wrong")
        return "\n".join([*lines, *(f"  not seen: {reason}" for reason in self.unexposed)])


def default_body_name(graph: str, node: onnx.NodeProto, attribute: str) -> str:
    """Name a body by its node's first output and attribute, after the bodies around it."""
    return "/".join(filter(None, (graph, f"{_first(node.output)}.{attribute}")))


def check_values(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    onnx_path: str | Path,
    attributed: Attributed,
    *,
    name_body: NameBody = default_body_name,
) -> ValueReport:
    """Compare every tensor of the file with what PyTorch made, and judge the calls attributed to it."""
    run = run_model(model, args, kwargs)
    made = Made(run, scripted_modules(model))
    proto = onnx.load(onnx_path)
    feeds = match_inputs(proto, named_arrays(model, args, kwargs or {}), run.outputs)
    probes, unexposed = run_exposed(proto, feeds, name_body)
    unexposed += [f"calls inside the scripted module {path or '<root>'}" for path in sorted(made.scripted)]
    attributed = number_as_run(attributed, {probe.graph for probe in probes})
    verdicts: dict[str, list[NodeCheck]] = defaultdict(list)
    for probe in probes:
        names = (probe.output, *probe.siblings)
        calls = next((attributed[key] for name in names if (key := (probe.graph, name)) in attributed), None)
        verdict, check = judge(probe, frozenset(calls or ()), made)
        verdicts[verdict].append(check)
    groups = (tuple(verdicts[verdict]) for verdict in ("right", "wrong", "unmatched", "trivial"))
    return ValueReport(*groups, unexposed=tuple(unexposed))


def number_as_run(attributed: Attributed, seen: set[str]) -> Attributed:
    """Number the calls as the run did: a file has both branches of an If, and a run calls modules in one of them."""
    graphs: dict[Scope, set[str]] = defaultdict(set)
    for (graph, _), scopes in attributed.items():
        for scope in scopes:
            graphs[scope].add(graph)
    skipped = [scope for scope, where in graphs.items() if not where & seen]
    numbers = {
        (module, number): number - sum(other == module and n < number for other, n in skipped)
        for module, number in graphs
    }
    return {
        key: frozenset((module, numbers[module, number]) for module, number in scopes)
        for key, scopes in attributed.items()
    }


# ---------------------------------------------------------------- judging


def judge(probe: Probe, attributed: frozenset[Scope], made: Made) -> tuple[str, NodeCheck]:
    """Return the verdict on one node output."""
    telling = [run for run in probe.runs if not run.value.is_trivial]
    made_by = frozenset(scope for run in telling for scope in made.makers(run.value))
    check = NodeCheck(probe.graph, probe.output, probe.op_type, attributed, made_by)
    if not telling:
        return "trivial", check
    if made_by & attributed:
        return "right", check
    if not made_by or made.hides(attributed, made_by):
        return "unmatched", check
    # Exporters insert Reshapes and Transposes that PyTorch does not have. Such a node only moves values, so
    # the call that made them need not be its own; but a call cannot move what it never had.
    moves = all(run.only_moves for run in telling)
    had = {scope for run in telling for scope in made.holders(run.value)}
    return ("unmatched" if moves and had & attributed else "wrong"), check


class Values:
    """A tensor's values without its layout, to be compared within a tolerance."""

    def __init__(self, array: np.ndarray) -> None:
        plain = array.view(array.real.dtype) if np.iscomplexobj(array) else array
        flat = np.asarray(plain, dtype=np.float64).ravel()
        self.flat = np.where(np.abs(flat) >= MASKED, np.copysign(np.inf, flat), flat)
        self.rtol, self._atol = (HALF_RTOL, HALF_ATOL) if array.dtype == np.float16 else (RTOL, ATOL)

    @cached_property
    def sorted(self) -> np.ndarray:
        return np.sort(self.flat)

    @cached_property
    def atol(self) -> float:
        # A quantile, not the maximum: one -10000 in a mask must not make all scores equal.
        sizes = np.abs(self.flat[np.isfinite(self.flat) & (self.flat != 0)])
        return self._atol * float(np.quantile(sizes, 0.25)) if sizes.size else 0.0

    @cached_property
    def moments(self) -> np.ndarray:
        """Return statistics that differ by no more than the values do: a quick test before the full one."""
        finite = self.flat[np.isfinite(self.flat)]
        if not finite.size:
            return np.zeros(4)
        return np.array([finite.size, finite.mean(), np.abs(finite).mean(), np.sqrt((finite**2).mean())])

    @cached_property
    def is_trivial(self) -> bool:
        """Whether other tensors may have these by chance: too few, all the same, a mask, a shape, a count."""
        distinct, counts = np.unique(self.flat, return_counts=True)
        if self.flat.size <= 2 or distinct.size <= 2:
            return True
        finite = distinct[np.isfinite(distinct)]
        if not finite.size or np.ptp(finite) <= self.rtol * np.abs(finite).max():
            return True
        if not np.array_equal(finite, np.round(finite)):
            return False
        is_count = finite.size == np.ptp(finite) + 1 and np.ptp(counts) == 0
        return self.flat.size <= 6 or bool(is_count)

    def equals(self, other: Values) -> bool:
        """Whether both hold the same values: in order, or in any order where dimensions were permuted."""
        if self.flat.size != other.flat.size:
            return False
        near = {"rtol": self.rtol, "atol": self.atol, "equal_nan": True}
        return np.allclose(other.flat, self.flat, **near) or np.allclose(other.sorted, self.sorted, **near)


class Made:
    """All tensors that the eager run made, found by value."""

    def __init__(self, run: EagerRun, scripted: frozenset[str] = frozenset()) -> None:
        self.scripted = scripted
        self._made = _Index((output, op.scope) for op in run.operations for output in op.outputs)
        calls = run.calls.values()
        taken = [(tensor, call.scope) for call in calls for tensor in call.inputs]
        given = [(tensor, call.parent) for call in calls if call.parent for tensor in call.outputs]
        self._held = _Index([*taken, *given])

    def makers(self, values: Values) -> frozenset[Scope]:
        """Return the calls in which some operation gave these values."""
        return self._made.find(values)

    def holders(self, values: Values) -> frozenset[Scope]:
        """Return the calls that were given these values: by their caller, or by a call of theirs."""
        return self._held.find(values)

    def hides(self, attributed: frozenset[Scope], made_by: frozenset[Scope]) -> bool:
        """Whether these were made in a scripted module and are attributed to one that it calls unseen."""
        inside = {path for path, _ in made_by} & self.scripted
        return any(_is_below(path, above) for above in inside for path, _ in attributed)


def scripted_modules(model: nn.Module) -> frozenset[str]:
    """Return the paths of the outermost scripted modules: TorchScript runs them with no module call seen."""
    found = [path for path, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)]
    return frozenset(path for path in found if not any(_is_below(path, other) for other in found))


def _is_below(path: str, other: str) -> bool:
    return path != other and (not other or path.startswith(other + "."))


class _Index:
    def __init__(self, tensors: Iterable[tuple[torch.Tensor, Scope]]) -> None:
        buckets: dict[int, list[tuple[Values, Scope]]] = defaultdict(list)
        for tensor, scope in tensors:
            if tensor.layout is torch.strided and tensor.numel():
                values = Values(array_of(tensor))
                buckets[values.flat.size].append((values, scope))
        self._buckets = buckets
        self._moments = {size: np.stack([values.moments for values, _ in bucket]) for size, bucket in buckets.items()}

    def find(self, values: Values) -> frozenset[Scope]:
        bucket = self._buckets.get(values.flat.size)
        if bucket is None:
            return frozenset()
        mean_size, root_mean_square = values.moments[2:]
        slack = np.array([0.5, *([values.rtol * max(mean_size, root_mean_square) + values.atol] * 3)])
        near = (np.abs(self._moments[values.flat.size] - values.moments) <= slack).all(axis=1)
        found = (bucket[row] for row in np.flatnonzero(near))
        return frozenset(scope for candidate, scope in found if values.equals(candidate))


# ---------------------------------------------------------------- running the file


@dataclass(frozen=True)
class Run:
    """One value of a node's output, with those of its inputs: one per iteration inside a Loop."""

    value: Values
    inputs: tuple[Values, ...]

    @cached_property
    def only_moves(self) -> bool:
        return any(self.value.equals(values) for values in self.inputs)


@dataclass(frozen=True)
class Probe:
    """A node output as the file names it, and under what name it can be read."""

    graph: str
    output: str
    op_type: str
    siblings: tuple[str, ...]
    exposed: str
    inputs: tuple[str, ...]
    repeats: bool = False
    """Whether it is read once per iteration, stacked."""
    runs: list[Run] = field(default_factory=list)


def run_exposed(
    proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], name_body: NameBody
) -> tuple[list[Probe], list[str]]:
    """Run the file with every tensor exposed; return the probes with their values, and what stayed hidden."""
    unexposed = [f"{len(f.node)} nodes of function {f.domain}::{f.name}" for f in proto.functions]
    inliner = _Inliner(proto, feeds, name_body, unexposed)
    probes = inliner.inline()
    looped = onnx.ModelProto.FromString(proto.SerializeToString())
    loop_probes = list(_expose_bodies(looped.graph, inliner.origins, name_body, unexposed))
    try:
        values = _run(looped, feeds, [probe.exposed for probe in (*probes, *loop_probes)])
    except Exception as error:
        if not loop_probes:
            raise
        # A tensor whose shape changes from one iteration to the next cannot be stacked.
        unexposed.append(f"{len(loop_probes)} outputs in loop bodies: {str(error).splitlines()[0]}")
        loop_probes = []
        values = _run(proto, feeds, [probe.exposed for probe in probes])
    known = {**{t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}, **feeds, **values}
    probes = [probe for probe in (*probes, *loop_probes) if isinstance(known.get(probe.exposed), np.ndarray)]
    cache: dict[tuple[str, int], Values] = {}
    for probe in probes:
        probe.runs.extend(_read_runs(probe, known, cache))
    return probes, unexposed


def read_tensors(
    proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], name_body: NameBody = default_body_name
) -> dict[tuple[str, str], list[np.ndarray]]:
    """Run the file; return every tensor that could be seen by its graph and name, once per iteration inside a Loop."""
    inliner = _Inliner(proto, feeds, name_body, [])
    probes = inliner.inline()
    looped = onnx.ModelProto.FromString(proto.SerializeToString())
    probes += _expose_bodies(looped.graph, inliner.origins, name_body, [], inputs=True)
    values = _run(looped, feeds, [probe.exposed for probe in probes])
    found = {("", t.name): [numpy_helper.to_array(t)] for t in proto.graph.initializer}
    found |= {("", name): [array] for name, array in feeds.items()}
    for probe in probes:
        array = values[probe.exposed]
        found[probe.graph, probe.output] = list(array) if probe.repeats else [array]
    return found


def _read_runs(probe: Probe, known: Mapping[str, Any], cache: dict[tuple[str, int], Values]) -> Iterator[Run]:
    def read(name: str, step: int) -> Values:
        if (name, step) not in cache:
            cache[name, step] = Values(known[name] if step < 0 else known[name][step])
        return cache[name, step]

    inputs = [name for name in probe.inputs if _is_numeric(known.get(name))]
    if not _is_numeric(known[probe.exposed]):
        return
    for step in range(len(known[probe.exposed])) if probe.repeats else (-1,):
        yield Run(read(probe.exposed, step), tuple(read(name, step) for name in inputs))


def _is_numeric(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.size > 0


def _run(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    exposed = onnx.ModelProto.FromString(proto.SerializeToString())
    present = {output.name for output in exposed.graph.output}
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(exposed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(list(names), dict(feeds)), strict=True)) if names else {}


class _Inliner:
    """Puts in place of each If the branch that it takes: the same computation, with its tensors in reach.

    The branch that is not taken has no values, neither here nor in PyTorch.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        feeds: Mapping[str, np.ndarray],
        name_body: NameBody,
        unexposed: list[str],
    ) -> None:
        self._proto, self._feeds, self._name_body, self._unexposed = proto, feeds, name_body, unexposed
        self._probes: dict[str, Probe] = {}
        self.origins: Origins = {}

    def inline(self) -> list[Probe]:
        graph = self._proto.graph
        self._note(graph.node, "", {})
        while (place := next((i for i, n in enumerate(graph.node) if n.op_type == "If"), None)) is not None:
            nodes = list(graph.node)
            nodes[place : place + 1] = self._branch_nodes(nodes[place])
            del graph.node[:]
            graph.node.extend(nodes)
        return list(self._probes.values())

    def _note(self, nodes: Iterable[onnx.NodeProto], graph: str, renamed: Mapping[str, str]) -> None:
        for node in nodes:
            outputs = tuple(filter(None, node.output))
            inputs = tuple(renamed.get(name, name) for name in node.input if name)
            for output in outputs:
                exposed = renamed.get(output, output)
                self._probes[exposed] = Probe(graph, output, node.op_type, outputs, exposed, inputs)
                self.origins[exposed] = graph, node

    def _branch_nodes(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        bodies = {attribute.name: attribute.g for attribute in node.attribute}
        parent, original = self.origins[_first(node.output)]
        taken, other = ("then_branch", "else_branch")[:: 1 if self._is_true(node.input[0]) else -1]
        skipped = self._name_body(parent, original, other)
        self._unexposed.append(f"{_count_nodes(bodies[other])} nodes of {skipped}: branch not taken")
        body, prefix = bodies[taken], f"{_first(node.output)}/{taken}/"
        made = [t.name for t in body.initializer] + [name for n in body.node for name in n.output if name]
        renamed = {name: prefix + name for name in made}
        self._note(body.node, self._name_body(parent, original, taken), renamed)
        nodes = [_rename(inner, renamed) for inner in body.node]
        for tensor in body.initializer:
            kept = self._proto.graph.initializer.add()
            kept.CopyFrom(tensor)
            kept.name = renamed[tensor.name]
        given = (
            (renamed.get(inner.name, inner.name), outer) for inner, outer in zip(body.output, node.output, strict=True)
        )
        return nodes + [onnx.helper.make_node("Identity", [inner], [outer]) for inner, outer in given if outer]

    def _is_true(self, condition: str) -> bool:
        copy = onnx.ModelProto.FromString(self._proto.SerializeToString())
        # The condition may be an initializer or an input, which cannot be outputs themselves.
        copy.graph.node.append(onnx.helper.make_node("Identity", [condition], ["valuecheck/condition"]))
        return bool(_run(copy, self._feeds, ["valuecheck/condition"])["valuecheck/condition"])


def _rename(node: onnx.NodeProto, renamed: Mapping[str, str]) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for names in (copy.input, copy.output):
        names[:] = [renamed.get(name, name) for name in names]
    for graph in _bodies(copy):
        # What the inner body names itself hides the outer name.
        own = {name for inner in graph.node for name in inner.output}
        own |= {value.name for value in (*graph.input, *graph.initializer)}
        outer = {old: new for old, new in renamed.items() if old not in own}
        nodes = [_rename(inner, outer) for inner in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)
    return copy


def _expose_bodies(
    graph: onnx.GraphProto, origins: Origins, name_body: NameBody, unexposed: list[str], *, inputs: bool = False
) -> Iterator[Probe]:
    """Give each Loop and Scan of the main graph one more stacked output per tensor of its body."""
    for node in graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type not in {"Loop", "Scan"}:
            continue
        parent, original = origins[_first(node.output)]
        body, name = attributes["body"].g, name_body(parent, original, "body")
        probes = list(_body_probes(body, name, _first(node.output)))
        if inputs:
            prefix = _first(node.output)
            probes += [Probe(name, v.name, "", (), f"{prefix}/body/{v.name}", (), repeats=True) for v in body.input]
        for probe in probes:
            body.node.append(onnx.helper.make_node("Identity", [probe.output], [probe.exposed + "/one"]))
            body.output.append(onnx.ValueInfoProto(name=probe.exposed + "/one"))
            node.output.append(probe.exposed)
        for listed in ("scan_output_axes", "scan_output_directions"):
            if listed in attributes:
                attributes[listed].ints.extend([0] * len(probes))
        inner = sum(_count_nodes(deeper) for deep in body.node for deeper in _bodies(deep))
        if inner:
            unexposed.append(f"{inner} nodes of bodies inside {name}")
        yield from probes


def _body_probes(body: onnx.GraphProto, name: str, prefix: str) -> Iterator[Probe]:
    inside = {output for node in body.node for output in node.output if output}
    for node in body.node:
        outputs = tuple(filter(None, node.output))
        inputs = tuple(f"{prefix}/body/{value}" for value in node.input if value in inside)
        for output in outputs:
            exposed = f"{prefix}/body/{output}"
            yield Probe(name, output, node.op_type, outputs, exposed, inputs, repeats=True)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _count_nodes(graph: onnx.GraphProto) -> int:
    return sum(1 + sum(_count_nodes(body) for body in _bodies(node)) for node in graph.node)


# ---------------------------------------------------------------- inputs


def match_inputs(
    proto: onnx.ModelProto, arguments: Iterable[tuple[str, np.ndarray]], outputs: Sequence[torch.Tensor]
) -> dict[str, np.ndarray]:
    """Find the argument for each graph input: by name, and the rest in order, if they fit.

    An exporter may drop and rename inputs; where several arguments fit, the model's outputs decide.

    Raises:
        AssertionError: The arguments do not fit the file's inputs, or never give the model's outputs.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in constants]
    left, named = list(arguments), {}
    for value in inputs:
        fitting = (i for i, (name, array) in enumerate(left) if name == value.name and _fits(value, array))
        if (found := next(fitting, None)) is not None:
            named[value.name] = left.pop(found)[1]
    unnamed = [value for value in inputs if value.name not in named]
    choices = [
        {**named, **{value.name: array for value, array in zip(unnamed, arrays, strict=True)}}
        for arrays in combinations([array for _, array in left], len(unnamed))
        if all(map(_fits, unnamed, arrays))
    ]
    assert choices, f"no arguments fit {[value.name for value in unnamed]}; left: {[name for name, _ in left]}"
    return choices[0] if len(choices) == 1 else _choose_by_outputs(proto, choices, outputs)


def _choose_by_outputs(
    proto: onnx.ModelProto, choices: Sequence[dict[str, np.ndarray]], outputs: Sequence[torch.Tensor]
) -> dict[str, np.ndarray]:
    wanted = [Values(array_of(output)) for output in outputs]
    names = [value.name for value in proto.graph.output]
    for feeds in choices:
        given = [Values(array) for array in _run(proto, feeds, names).values()]
        if all(any(found.equals(value) for value in given) for found in wanted):
            return feeds
    raise AssertionError(f"no choice of arguments for {list(choices[0])} gives the model's outputs")


def named_arrays(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors and numbers among the arguments, named after the forward's parameters."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        for path, leaf in tree_flatten_with_path(value)[0]:
            if isinstance(leaf, torch.Tensor | bool | int | float):
                # torch names a flattened input by its path: `cache_0_key`.
                words = "".join(c if c.isalnum() else " " for c in keystr(path)).split()
                yield "_".join([name, *words]), array_of(torch.as_tensor(leaf))


def _fits(value: onnx.ValueInfoProto, array: np.ndarray) -> bool:
    tensor = value.type.tensor_type
    if onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) != array.dtype:
        return False
    if not tensor.HasField("shape"):
        return True
    wanted = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    return len(wanted) == array.ndim and all(
        size in {None, actual} for size, actual in zip(wanted, array.shape, strict=True)
    )


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array; bfloat16, which numpy lacks, as float32."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()


def _first(names: Iterable[str]) -> str:
    return next(filter(None, names))


def _text(scopes: frozenset[Scope]) -> str:
    return ", ".join(f"{path or '<root>'}@{index}" for path, index in sorted(scopes)) or "no call"
