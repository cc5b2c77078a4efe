"""A file and every part of it, against what the module calls received and returned, and against the whole file.

A part is fed twice: with the whole file's own tensors, when it must give the file's own tensors bit for bit; and with
what the module call received, found by value alone, when it must give what the call returned. It asks for nothing that
the call did not receive, except for what the result lists by name; and all that the list has was not received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn

from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.extract.extracting import Extractor
from hieronnx.tools.extract.find import Part, explain_no_nodes
from hieronnx.tools.extract.result import ExtractResult, PartInput
from support.callrecords import (
    Arrays,
    CallRecord,
    equal,
    identical,
    largest_error,
    number_calls,
    open_session,
    run_eagerly,
)
from support.valuecheck import array_of, match_inputs, named_arrays, read_tensors

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


@dataclass
class Verdicts:
    """What was found of the parts of one file, call by call."""

    equal: list[str] = field(default_factory=list)
    """Fed as PyTorch was, they give what PyTorch gave; and bit for bit what the file gives."""
    empty: dict[str, str] = field(default_factory=dict)
    """Calls without nodes, and what became of them."""
    unseen: dict[str, str] = field(default_factory=dict)
    """Calls that eager PyTorch did not make, or not visibly; checked against the file alone."""
    undeclared_inputs: dict[str, list[str]] = field(default_factory=dict)
    """Inputs that the call did not receive, as the result says and the values prove."""
    extra: dict[str, list[str]] = field(default_factory=dict)
    """Outputs that the call did not return: what others read of its insides."""
    fused: dict[str, str] = field(default_factory=dict)
    """Calls with an edge that is fused with another call's, with the calls that the result names."""
    foreign: dict[str, list[str]] = field(default_factory=dict)
    """Nodes in a part that ran in a call above: they take what the call made, and it takes what they made."""
    unrecorded: list[str] = field(default_factory=list)
    """Calls of which the file does not tell what they received and returned."""
    unknown: dict[str, list[str]] = field(default_factory=dict)
    """What calls received or returned and the file's records do not know of; it is listed as if it was not."""
    wrong: dict[str, str] = field(default_factory=dict)


class PartCheck:
    """One exported file, run once as a whole, to check the parts of it against."""

    def __init__(
        self,
        path: Path,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        folder: Path | None = None,
    ) -> None:
        """Run the file and the model; parts are checked as files where there is a folder to write them to."""
        self.extractor = Extractor(path)
        self.eager = run_eagerly(model, args, kwargs)
        self._model, self._folder = model, folder
        proto = onnx.load(path)
        feeds = match_inputs(proto, named_arrays(model, args, kwargs), self.eager.outputs)
        self.tensors = read_tensors(proto, feeds)
        given = [self.tensors["", output.name][0] for output in proto.graph.output]
        self.error = largest_error(given, [array_of(t) for t in self.eager.outputs])
        self._runs = number_calls(self.extractor.hierarchy, {graph for graph, _ in self.tensors})
        self._sessions: dict[tuple[Any, ...], ort.InferenceSession] = {}

    def check_all(self) -> Verdicts:
        """Check every call of the file."""
        verdicts = Verdicts()
        for call in self.extractor.hierarchy.calls:
            name = str(call.id) or "<root>"
            part = self.extractor.find(call.id)
            if part is None:
                verdicts.empty[name] = explain_no_nodes(self.extractor.hierarchy, call.id)
                continue
            try:
                self._check(name, part, verdicts)
            except AssertionError as error:
                verdicts.wrong[name] = str(error)
        self._sessions.clear()  # thousands of them would add up
        return verdicts

    def _check(self, name: str, part: Part, verdicts: Verdicts) -> None:
        self._check_nodes(name, part, verdicts)
        extraction, session = self._open(part)
        if not extraction.recorded:
            verdicts.unrecorded.append(name)
        if extraction.fused_with:
            verdicts.fused[name] = ", ".join(map(str, extraction.fused_with))
        self._check_producers(extraction)
        steps = self._steps(part)
        if steps == 0:
            verdicts.unseen[name] = "in a branch that is not taken"
            self._check_alone(part.call, session)
            return
        for step in range(steps):
            feeds = {name: self._value(part, name, step) for name in extraction.input_names}
            given = session.run(None, feeds)
            for output, array in zip(extraction.output_names, given, strict=True):
                expected = self._value(part, output, step)
                assert identical(array, expected), f"{output} is not bit for bit what the whole file gives"
            record = self._record(part.call, step)
            if record is None or not record.returned:
                verdicts.unseen[name] = "eager PyTorch shows no tensors of it"
                self._check_alone(part.call, session)
                return
            eager = {
                i.name: self._received(name, extraction, i, feeds[i.name], record, verdicts) for i in extraction.inputs
            }
            given = session.run(None, eager)
            self._check_given(name, part, extraction, given, step, verdicts)
            self._check_complete(part, record, step)
            self._check_returned(part, extraction, given, step)
        verdicts.equal.append(name)

    def _check_alone(self, call: CallId, session: ort.InferenceSession) -> None:
        """Compare a part with the module run by itself, on numbers of its own: there are no others to be had."""
        (wanted,) = session.get_inputs()
        x = np.random.default_rng(0).standard_normal(wanted.shape).astype(np.float32)
        with torch.no_grad():
            expected = array_of(dict(self._model.named_modules())[call.module](torch.from_numpy(x)))
        (given,) = session.run(None, {wanted.name: x})
        assert self._equal(given, expected), "by itself the module gives something else"

    def _record(self, call: CallId, step: int = 0) -> CallRecord | None:
        return self.eager.calls.get(self._run_of(call, step))

    def _run_of(self, call: CallId, step: int) -> CallId:
        run = self._runs.get(call, call)
        return CallId(run.module, run.number + step)

    # Inputs and outputs --------------------------------------------------------------------------------

    def _check_producers(self, extraction: ExtractResult) -> None:
        """Every input that was not received is listed with the node that makes it."""
        listed = [item.name for item in extraction.inputs if not item.arguments]
        if extraction.recorded:
            assert [item.name for item in extraction.undeclared_inputs] == listed
        fed = self._names(self._view.graphs[0].inputs)
        for item in extraction.undeclared_inputs:
            assert item.producer is not None or item.name in fed, f"nobody says where {item.name} comes from"

    def _received(
        self,
        name: str,
        extraction: ExtractResult,
        item: PartInput,
        array: np.ndarray,
        record: CallRecord,
        verdicts: Verdicts,
    ) -> np.ndarray:
        """Return what the call received as this input; of what it did not receive, and is listed, the file's own."""
        found = next((a for a in record.received if self._equal(a, array)), None)
        if item in extraction.undeclared_inputs and found is not None:
            assert extraction.lost_arguments, f"{item.name} is listed as not received, and was"
            verdicts.unknown.setdefault(name, []).append(item.name)
            return found
        if item in extraction.undeclared_inputs:
            verdicts.undeclared_inputs.setdefault(name, []).append(item.name)
            return array
        received = [(a.shape, str(a.dtype)) for a in record.received]
        assert found is not None, f"asks for {item.name} {array.shape} {array.dtype}; received: {received}"
        return found

    def _check_given(
        self, name: str, part: Part, extraction: ExtractResult, given: Arrays, step: int, verdicts: Verdicts
    ) -> None:
        """Every output is what the call returned; or, of a fused node, what the last of its calls returned."""
        record = self._record(part.call, step)
        assert record is not None
        returned = 0
        for result, array in zip(extraction.outputs, given, strict=True):
            found = any(self._equal(a, array) for a in record.returned)
            if found and extraction.recorded and not result.places:
                assert self._is_lost(part, any), f"{result.name} is listed as not returned, and was"
                verdicts.unknown.setdefault(name, []).append(result.name)
            assert found or not result.places, f"{result.name} is said to be returned, and was not"
            if found:
                returned += 1
                continue
            sharers = self._sharers(part, lambda index, output=result.name: output in self._made(index))
            last = self._record(sharers[-1], step) if sharers else None
            if last and any(self._equal(a, array) for a in last.returned):
                assert extraction.fused_with, f"nothing says that {result.name} is made of more than this call"
                returned += 1
                continue
            assert self._may_leave(part, array, step), f"{result.name} is nothing that the call received or made"
            verdicts.extra.setdefault(name, []).append(result.name)
        assert returned or self._is_lost(part, all), f"no output is what was returned: {extraction.output_names}"

    def _may_leave(self, part: Part, array: np.ndarray, step: int) -> bool:
        """Say whether a part may give this though its call did not return it: the call received or made it.

        An exporter lets others read a copy of what the call received, such as a Cast that changes nothing; a model may
        return what was made deep inside it, such as a cache; and where what others do undoes the last that the call
        did, they read what it had before, maybe in a layout of its own.
        """
        record = self._record(part.call, step)
        assert record is not None
        calls = self.extractor.hierarchy.tree.below(part.call)
        made = [a for below in calls for a in self.eager.made.get(self._run_of(below, step), ())]
        return any(self._equal(a, array) for a in record.received) or any(self._same_numbers(a, array) for a in made)

    def _same_numbers(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Say whether two arrays have the same numbers in whatever order."""
        return a.size == b.size and self._equal(np.sort(a, axis=None), np.sort(b, axis=None))

    def _is_lost(self, part: Part, how_many: Callable[[Iterable[bool]], bool]) -> bool:
        """Say whether the file has nothing of some, or all, that a call returned."""
        returned = self.extractor.hierarchy.call_by_id[part.call].returned
        return returned is not None and how_many(item.tensor is None for item in returned)

    def _sharers(self, part: Part, concerns: Callable[[int], bool]) -> list[CallId]:
        """Return the calls that have part in the nodes in question, if others than this one have part in all."""
        nodes, below = self.extractor.source.attributions, set(self.extractor.hierarchy.tree.below(part.call))
        origins = [nodes[index].origins for index in part.region if concerns(index)]
        if any(below.issuperset(found) for found in origins):
            return []
        return sorted({origin for found in origins for origin in found}, key=self._order.__getitem__)

    @cached_property
    def _order(self) -> dict[CallId, int]:
        return {call.id: number for number, call in enumerate(self.extractor.hierarchy.calls)}

    def _check_complete(self, part: Part, record: CallRecord, step: int) -> None:
        """Every tensor that the call returned is an output, where the call's nodes make it and somebody reads it."""
        source, view = self.extractor.source, self._view
        bodies = set(source.bodies_below(part.region))
        inside = {*part.nodes, *(i for graph in bodies for i in view.nodes_in[graph])}
        own = {i for below in source.hierarchy.tree.below(part.call) for i in source.nodes_of.get(below, ())}
        made = [t for i in sorted(own) if view.nodes[i].graph not in bodies for t in self._outputs(i)]
        for tensor in made:
            if tensor in part.outputs or not self._leaves(tensor, inside):
                continue
            values = self.tensors.get((view.graphs[view.nodes[view.producers[tensor]].graph].key, view.names[tensor]))
            array = values[step if len(values) > 1 else 0] if values else None
            returned = array is not None and any(self._equal(a, array) for a in record.returned)
            assert not returned, f"{view.names[tensor]} was returned, is read, and is no output"

    def _check_returned(self, part: Part, extraction: ExtractResult, given: Arrays, step: int) -> None:
        """Every tensor that the call returned is given, but for what the result lists and the part never computes.

        A constant that torch computed while it lowered the graph is not followed: it may be there, and listed as lost.
        """
        record = self._record(part.call, step)
        assert record is not None
        missing = [a for a in record.returned if not any(self._equal(a, array) for array in given)]
        if not extraction.recorded or extraction.fused_with:
            return
        lost = extraction.lost_outputs
        assert len(missing) <= len(lost), f"returned {[a.shape for a in missing]} and gives none; lost: {lost}"
        computed = (t for i in part.nodes for t in self._outputs(i) if t not in self._valueless) if missing else ()
        for name in self._names(computed):
            held = any(self._equal(a, self._value(part, name, step)) for a in missing)
            assert not held, f"{name} is what was returned, and is listed as lost"

    def _leaves(self, tensor: int, inside: set[int]) -> bool:
        """Say whether anybody outside reads a tensor."""
        source = self.extractor.source
        owners = [self._view.graphs[graph].owner for graph in source.returned_by.get(tensor, ())]
        return not inside.issuperset(self._view.consumers[tensor]) or any(o is None or o not in inside for o in owners)

    # Nodes ---------------------------------------------------------------------------------------------

    def _check_nodes(self, name: str, part: Part, verdicts: Verdicts) -> None:
        """Every node is the call's, or needs no values, or ran in a call above between two nodes of the part."""
        source = self.extractor.source
        below, above = set(source.hierarchy.tree.below(part.call)), set(source.hierarchy.tree.ancestors(part.call))
        nodes = source.attributions
        own = [i for i in part.nodes if below.intersection((nodes[i].scope, *nodes[i].origins))]
        foreign = [i for i in part.nodes if i not in set(own) and not self._valueless.issuperset(self._outputs(i))]
        for index in foreign:
            what = f"{self._view.nodes[index].op} {nodes[index].output}"
            assert nodes[index].scope in above, f"{what} of {nodes[index].scope} is no node of the call"
        verdicts.foreign |= {name: [nodes[i].output for i in foreign]} if foreign else {}
        self._check_between(own, foreign)

    def _check_between(self, own: Sequence[int], foreign: Sequence[int]) -> None:
        view = self._view
        made = {t for index in own for t in self._outputs(index)}
        for index in foreign:
            assert made.intersection(view.nodes[index].reads), f"{self._made(index)} takes nothing that the call made"
            made.update(self._outputs(index))
        read = {t for index in own for t in view.nodes[index].reads}
        for index in reversed(foreign):
            assert read.intersection(self._outputs(index)), f"{self._made(index)} gives the call nothing"
            read.update(view.nodes[index].reads)

    @cached_property
    def _valueless(self) -> set[int]:
        """The tensors that depend on no value of what is fed: constants, sizes, and what is made of these alone."""
        view = self._view
        found = set(view.constants)
        for index, node in enumerate(view.nodes):
            if node.op not in RANDOM and (node.op in ("Shape", "Size") or found.issuperset(view.nodes[index].reads)):
                found.update(self._outputs(index))
        return found

    @property
    def _view(self) -> View:
        return self.extractor.source.view

    def _names(self, tensors: Iterable[int]) -> set[str]:
        return {self._view.names[tensor] for tensor in tensors}

    def _outputs(self, index: int) -> list[int]:
        return [t for t in self._view.nodes[index].outputs if t != NO_TENSOR]

    def _made(self, index: int) -> set[str]:
        return self._names(self._outputs(index))

    # Composition ---------------------------------------------------------------------------------------

    def find_misfits(self) -> list[str]:
        """Return what a part reads of a sibling that the sibling's part does not give."""
        source, misfits = self.extractor.source, []
        for children in source.hierarchy.tree.children.values():
            parts = [part for child in children if (part := self.extractor.find(child)) is not None]
            makers = {t: part for part in parts for i in part.region for t in self._view.nodes[i].outputs}
            for part in parts:
                for tensor in part.inputs:
                    if tensor in makers and tensor not in makers[tensor].outputs:
                        misfits.append(f"{part.call} reads {self._view.names[tensor]} of {makers[tensor].call}")
        return misfits

    def composable(self) -> list[CallId]:
        """Return the calls of the main graph that have no nodes but those of the calls that they make."""
        found = []
        for call, children in self.extractor.hierarchy.tree.children.items():
            part = self.extractor.find(call)
            parts = [below for child in children if (below := self.extractor.find(child)) is not None]
            if part is not None and part.graphs == {0} and len(parts) > 1:
                inner = {index for below in parts for index in below.region}
                if inner.issuperset(part.region):
                    found.append(call)
        return found

    def compose(self, call: CallId) -> None:
        """Run the parts of the calls that a call makes, one after the other: they give the call's own tensors."""
        whole = self.extractor.find(call)
        assert whole is not None
        known = {name: self._value(whole, name, 0) for name in map(self._view.names.__getitem__, whole.inputs)}
        for child in self.extractor.hierarchy.tree.children[call]:
            part = self.extractor.find(child)
            if part is not None:
                extraction, session = self._open(part)
                given = session.run(None, {name: known[name] for name in extraction.input_names})
                known |= dict(zip(extraction.output_names, given, strict=True))
        for name in map(self._view.names.__getitem__, whole.outputs):
            assert identical(known[name], self._value(whole, name, 0)), name

    def _open(self, part: Part) -> tuple[ExtractResult, ort.InferenceSession]:
        key = tuple(part.nodes), part.inputs, part.outputs  # calls of the same nodes need one session
        call = self.extractor.hierarchy.call_by_id[part.call]
        file = self._folder / f"{len(self._sessions)}.onnx" if self._folder and key not in self._sessions else None
        extraction = self.extractor.extract([call], file)
        if key not in self._sessions:
            held = extraction.model
            onnx.checker.check_model(str(held) if isinstance(held, Path) else held, full_check=True)
            self._sessions[key] = open_session(held)
        return extraction, self._sessions[key]

    def _steps(self, part: Part) -> int:
        keys = [self._view.node_key(index) for index in part.region]
        return min(len(self.tensors.get(key, ())) for key in keys)

    def _value(self, part: Part, name: str, step: int) -> np.ndarray:
        graphs = sorted(part.graphs, key=lambda g: -len(self._view.graphs[g].key))
        for graph in graphs:
            values = self.tensors.get((self._view.graphs[graph].key, name))
            if values:
                return values[step if len(values) > 1 else 0]
        raise AssertionError(f"the whole file shows no {name}")

    def _equal(self, a: np.ndarray, b: np.ndarray) -> bool:
        return equal(a, b, self.error)
