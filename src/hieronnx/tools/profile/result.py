"""The records of a profile: kernels, the calls that they are of, the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, ClassVar

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.profile.changes import IsolatedCall, ProfileComparison
from hieronnx.tools.results import Result, dump_record

KINDS = ("module", "inserted", "memcpy", "unattributed", "runtime")
"""What a kernel is: work of modules; put in by the optimizer for a module; a copy between devices; a node of which the
module is not known; or of no node of the graph at all. The last two count at the root, and are told apart."""


@dataclass(frozen=True, slots=True)
class KernelShare(Result):
    """The part of a kernel that is a call's, and its time; the parts of a kernel add up to 1."""

    module: str
    call: int
    part: float
    us: float


@dataclass(frozen=True, slots=True)
class Kernel(Result):
    """A node of the graph that ran, or what ran without one.

    Attributes:
        name: as ONNX Runtime's profiler has it.
        op_type: its operator.
        domain: of the operator; nothing for the standard one.
        provider: the execution provider that ran it.
        kind: one of `KINDS`.
        us: the median of the runs, in microseconds: all its iterations, without what a loop or branch of it ran.
        spread_us: half of the runs lie within so much of each other, to either side of the median.
        count: how often it ran in a run.
        node: the node of the optimized graph, with its scope and evidence; None where there is none.
        origins: the calls whose work it does.
        shares: its time by these calls; they add up to `us`.
        multiply_adds: of the model that it does; None where they are not known.
        bytes: that it read and wrote, what fills up whole blocks of channels included.
        peak_memory: the most bytes in use as it ended; None where ONNX Runtime does not say.
        allocated: the bytes that it asked for and kept; None where ONNX Runtime does not say.
    """

    _derived: ClassVar[tuple[str, ...]] = ("shared",)

    name: str
    op_type: str
    domain: str
    provider: str
    kind: str
    us: float
    spread_us: float
    count: int
    node: Node | None
    origins: tuple[CallId, ...]
    shares: tuple[KernelShare, ...]
    multiply_adds: int | None
    bytes: int
    peak_memory: int | None
    allocated: int | None

    @property
    def shared(self) -> bool:
        """Whether it does the work of several calls."""
        return len(self.shares) > 1

    @property
    def operator(self) -> str:
        """The operator, with its domain before `::` where that is not the standard one."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    def to_dict(self) -> dict[str, Any]:
        """Return the kernel as JSON values; of its node what identifies it, and how its call is known."""
        node = self.node
        known = None if node is None else {"graph": node.graph, "name": node.name, "output": node.output}
        return {
            **dump_record(self, {"node"}),
            "node": known if node is None or known is None else {**known, "evidence": node.evidence},
        }


@dataclass(frozen=True, slots=True)
class CallTime(Result):
    """The time of one call: its own, and with all calls below it.

    Attributes:
        module: the path of its module.
        call: which run of the module it is.
        parent: the call that made it; None for the root.
        tag: its name for people.
        tagged: whether the tag is its own.
        class_name: of its module.
        own_us: the time of its own kernels, and its shares of those that it shares, in microseconds.
        total_us: the same with all calls below it.
        share: `total_us` as a part of the model's.
        spread_us: half of the runs lie within so much of each other, to either side of the median.
        kernels: how many kernels it and those below it have a part in.
        own_kernels: how many it has a part in itself.
        shared_us: the part of its own time that is of kernels which do the work of other calls as well.
        count: how often the kernels of its own ran in a run: the iterations of a loop.
        multiply_adds: of it and those below it; at least, where some are not known.
        own_multiply_adds: of its own.
        bytes: that were read and written, by it and those below it.
        own_bytes: by its own kernels.
        peak_memory: the most bytes in use as one of its kernels ended; None where ONNX Runtime does not say.
        allocated: the bytes that its kernels asked for and kept; None where ONNX Runtime does not say.
        bound: what limits it: `compute`, `memory` or `overhead`; None where the machine was not measured.
        own_bound: what limits its own kernels.
        elsewhere: where the work of its nodes is done, where no kernel is its own.
        samples_us: `total_us` of each run.
        floor_us: for each session the time that it takes when nothing else disturbs: the least of each kernel.
    """

    _derived: ClassVar[tuple[str, ...]] = ("gflops", "own_gflops", "gbytes_per_second", "own_gbytes_per_second")

    module: str
    call: int
    parent: CallId | None
    tag: str
    tagged: bool
    class_name: str
    own_us: float
    total_us: float
    share: float
    spread_us: float
    kernels: int
    own_kernels: int
    shared_us: float
    count: int
    multiply_adds: int
    own_multiply_adds: int
    bytes: int
    own_bytes: int
    peak_memory: int | None
    allocated: int | None
    bound: str | None
    own_bound: str | None
    elsewhere: str
    samples_us: tuple[float, ...]
    floor_us: tuple[float, ...]

    @property
    def id(self) -> CallId:
        """The call."""
        return CallId(self.module, self.call)

    @property
    def gflops(self) -> float | None:
        """The floating-point operations that it reaches, in 10⁹ a second, two for a multiply-add."""
        return 2e-3 * self.multiply_adds / self.total_us if self.total_us else None

    @property
    def own_gflops(self) -> float | None:
        """The same of its own kernels."""
        return 2e-3 * self.own_multiply_adds / self.own_us if self.own_us else None

    @property
    def gbytes_per_second(self) -> float | None:
        """The bytes that it reads and writes, in 10⁹ a second."""
        return 1e-3 * self.bytes / self.total_us if self.total_us else None

    @property
    def own_gbytes_per_second(self) -> float | None:
        """The same of its own kernels."""
        return 1e-3 * self.own_bytes / self.own_us if self.own_us else None


@dataclass(frozen=True, slots=True)
class TimeGroup(Result):
    """The time of all kernels of an operator, or of all calls of a class.

    Attributes:
        name: of the operator or class.
        us: their time, in microseconds; of calls inside one another that of the outermost.
        own_us: the calls' own time; of kernels the same as `us`.
        share: `us` as a part of the model's.
        members: how many kernels or calls there are.
        kernels: how many kernels these have a part in.
        multiply_adds: of all of them; at least, where some are not known.
        bytes: that were read and written.
    """

    name: str
    us: float
    own_us: float
    share: float
    members: int
    kernels: int
    multiply_adds: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Machine(Result):
    """What ONNX Runtime reaches on this machine, with as many threads: by a matrix product, and by a copy."""

    gflops: float
    gbytes_per_second: float


@dataclass(frozen=True, slots=True)
class ProfileResult(Result):
    """Where the time of a model goes, by module call.

    Attributes:
        model: the file's path as it was given; `model` for a model in memory.
        optimization: the level at which ONNX Runtime optimized it; nothing for a trace from elsewhere.
        providers: the execution providers.
        threads: how many threads an operator may use; None for ONNX Runtime's own choice.
        inputs: what it was run on, by name: type and sizes.
        runs: how many runs count; those to warm up do not.
        total_us: the time of all kernels, in microseconds; the calls' own times add up to it.
        run_us: the median of the runs from end to end, with the profiler on.
        plain_us: the same with the profiler off; None for a trace from elsewhere.
        load_us: what it took to load and optimize the model; None for a trace from elsewhere.
        peak_memory: the most bytes in use; None where ONNX Runtime does not say.
        machine: what this machine reaches; None where that was not measured.
        calls: every call, in the order of the hierarchy.
        kernels: every kernel, in the order in which they ran.
        by_kind: the time of the kernels of each kind.
        hierarchy: of the graph that ran.
        comparison: against another profile, if that was asked for.
        isolated: the calls that were timed alone, if that was asked for.
        notes: what the user should know, a line each.
    """

    _derived: ClassVar[tuple[str, ...]] = ("profiling_us", "by_operator", "by_class")

    model: str
    optimization: str
    providers: tuple[str, ...]
    threads: int | None
    inputs: Mapping[str, str]
    runs: int
    total_us: float
    run_us: float
    plain_us: float | None
    load_us: float | None
    peak_memory: int | None
    machine: Machine | None
    calls: tuple[CallTime, ...]
    kernels: tuple[Kernel, ...]
    by_kind: Mapping[str, float]
    hierarchy: Hierarchy
    comparison: ProfileComparison | None = None
    isolated: tuple[IsolatedCall, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def profiling_us(self) -> float | None:
        """What the profiler itself cost a run."""
        return None if self.plain_us is None else self.run_us - self.plain_us

    @property
    def by_operator(self) -> tuple[TimeGroup, ...]:
        """The kernels by operator, the slowest first."""
        groups: dict[str, list[Kernel]] = {}
        for kernel in self.kernels:
            groups.setdefault(kernel.operator, []).append(kernel)
        return _sort(
            TimeGroup(
                name=name,
                us=(us := fsum(kernel.us for kernel in kernels)),
                own_us=us,
                share=us / self.total_us if self.total_us else 0.0,
                members=len(kernels),
                kernels=len(kernels),
                multiply_adds=sum(kernel.multiply_adds or 0 for kernel in kernels),
                bytes=sum(kernel.bytes for kernel in kernels),
            )
            for name, kernels in groups.items()
        )

    @property
    def by_class(self) -> tuple[TimeGroup, ...]:
        """The calls by the class of their modules, the slowest first; a class may be inside another."""
        by_id = {call.id: call for call in self.calls}
        groups: dict[str, list[CallTime]] = {}
        for call in self.calls:
            groups.setdefault(call.class_name, []).append(call)
        return _sort(self._add_up(name, calls, by_id) for name, calls in groups.items())

    def _add_up(self, name: str, calls: Sequence[CallTime], by_id: Mapping[CallId, CallTime]) -> TimeGroup:
        above = (self.hierarchy.tree.ancestors(call.id) for call in calls)
        outermost = [
            call
            for call, way in zip(calls, above, strict=True)
            if all(by_id[other].class_name != name for other in way if other != call.id)
        ]
        us = fsum(call.total_us for call in outermost)
        return TimeGroup(
            name=name,
            us=us,
            own_us=fsum(call.own_us for call in calls),
            share=us / self.total_us if self.total_us else 0.0,
            members=len(calls),
            kernels=sum(call.kernels for call in outermost),
            multiply_adds=sum(call.multiply_adds for call in outermost),
            bytes=sum(call.bytes for call in outermost),
        )

    def __repr__(self) -> str:
        slowest = max(self.calls, key=lambda call: call.own_us, default=None)
        where = "" if slowest is None else f", most in '{slowest.id}'"
        return f"ProfileResult({self.model!r}: {self.total_us:,.0f} us in {len(self.kernels)} kernels{where})"


def _sort(groups: Iterable[TimeGroup]) -> tuple[TimeGroup, ...]:
    return tuple(sorted(groups, key=lambda group: (-group.us, group.name)))
