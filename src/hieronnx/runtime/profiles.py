"""Running a model in ONNX Runtime with its profiler on, and reading the traces that the profiler writes.

A trace has an event for each kernel that ran, and one for each run of the model, recorded as they end:

    Node  matmul_1_kernel_time   ts 10 dur 7        in the body of the loop
    Node  loop_kernel_time       ts  5 dur 14       what it ran is in its time
    Session  model_run           ts  4 dur 20
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, InputError, check_known, describe_error
from hieronnx.files.opening import OpenedModel
from hieronnx.graph.view import SMALL_TENSOR_BYTES
from hieronnx.graph.walks import first_name, walk_bodies
from hieronnx.runtime.inputs import FileInput, describe_inputs
from hieronnx.runtime.sessions import FOLDER_ENTRY, Array, open_references

LEVELS: Mapping[str, str] = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
"""ONNX Runtime's levels of optimization, by the names that users give them."""

_KERNEL = "_kernel_time"
_RUN = "model_run"
_FATAL_ONLY = 4
_PROVIDER = "ExecutionProvider"


# -- traces -----------------------------------------------------------------------------------------------


class EventArguments(msgspec.Struct, gc=False):
    """What ONNX Runtime says of a kernel; sizes are in bytes, and numbers are written as text.

    Types and shapes are decoded when they are asked for: that is of one run in many.
    """

    op_name: str = ""
    provider: str = ""
    activation_size: int = 0
    output_size: int = 0
    input_type_shape: msgspec.Raw = msgspec.Raw(b"[]")
    output_type_shape: msgspec.Raw = msgspec.Raw(b"[]")
    mem_bytes_in_use: int | None = None
    mem_requested_in_use_delta: int | None = None
    mem_in_use_peak: int | None = None

    @property
    def input_shapes(self) -> list[list[int]]:
        """The shapes of the inputs that were there, weights in a kernel's own form left out."""
        return _decode_shapes(self.input_type_shape)

    @property
    def output_shapes(self) -> list[list[int]]:
        """The shapes of the outputs."""
        return _decode_shapes(self.output_type_shape)


def _decode_shapes(written: msgspec.Raw) -> list[list[int]]:
    """Decode a list of shapes, each under the name of its type."""
    typed = msgspec.json.decode(written, type=list[dict[str, list[int]]])
    return [shape for item in typed for shape in item.values()]


class TraceEvent(msgspec.Struct, gc=False):
    """One event of a trace; times in microseconds."""

    name: str
    cat: str = ""
    ts: float = 0
    dur: float = 0
    pid: int | str = 0
    tid: int | str = 0
    args: EventArguments = msgspec.field(default_factory=EventArguments)

    @property
    def kernel(self) -> str:
        """The name of the node that ran."""
        return self.name.removesuffix(_KERNEL)


@dataclass(frozen=True, slots=True)
class Trace:
    """The runs of a model: the kernels of each as they ended, and how long each took from end to end."""

    runs: Sequence[Sequence[TraceEvent]]
    run_us: Sequence[float]

    def take_last(self, count: int) -> Trace:
        """Return the last runs alone."""
        return Trace(self.runs[-count:], self.run_us[-count:])


def read_trace(path: Path) -> Trace:
    """Read a trace that ONNX Runtime wrote.

    Raises:
        HieronnxError: If it cannot be read, or has no run with kernels in it.
    """
    try:
        events = msgspec.json.decode(path.read_bytes(), type=list[TraceEvent], strict=False)
    except OSError as error:
        raise HieronnxError(f"cannot read '{path}': {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HieronnxError(f"'{path}' is not a trace of ONNX Runtime's profiler: {error}") from error
    trace = _divide_by_run(events)
    if not any(trace.runs):
        raise HieronnxError(f"'{path}' has no run with kernels in it; run the model while the profiler is on")
    return trace


def _divide_by_run(events: Sequence[TraceEvent]) -> Trace:
    """Give each kernel to the run in whose time it began: of its own thread, or of any where that has none."""
    runs = [event for event in events if event.cat == "Session" and event.name == _RUN]
    by_thread: dict[Any, list[int]] = defaultdict(list)
    for position in sorted(range(len(runs)), key=lambda place: runs[place].ts):
        by_thread[runs[position].pid, runs[position].tid].append(position)
        by_thread[None].append(position)
    starts = {thread: [runs[place].ts for place in places] for thread, places in by_thread.items()}
    divided: list[list[TraceEvent]] = [[] for _ in runs]
    for event in events:
        if event.cat == "Node" and event.name.endswith(_KERNEL):
            thread = (event.pid, event.tid) if (event.pid, event.tid) in by_thread else None
            place = bisect_right(starts.get(thread, ()), event.ts) - 1
            run = by_thread[thread][place] if place >= 0 else None
            if run is not None and event.ts <= runs[run].ts + runs[run].dur:
                divided[run].append(event)
    return Trace(divided, [run.dur for run in runs])


# -- sessions ---------------------------------------------------------------------------------------------


class ProfiledSession:
    """A model that runs with the profiler on, until `finish`, and with the profiler off from then on.

    Attributes:
        optimized: the graph that runs, as ONNX Runtime wrote it.
        inputs: what the model must be given.
        load_seconds: how long it took to make the session.
    """

    def __init__(self, name: str, model: onnx.ModelProto, options: Any, providers: Sequence[str], folder: Path) -> None:
        import onnxruntime as ort

        self._name = name
        self.optimized = folder / "optimized.onnx"
        self.inputs: tuple[FileInput, ...] = describe_inputs(model.graph)
        options.optimized_model_filepath = str(self.optimized)
        options.profile_file_prefix = str(folder / "profile")
        begin = perf_counter()
        try:
            self._session = ort.InferenceSession(model.SerializeToString(), options, providers=list(providers))
        except Exception as error:  # of classes of its own, that share no other base
            raise HieronnxError(f"ONNX Runtime cannot load '{name}': {describe_error(error)}") from error
        self.load_seconds = perf_counter() - begin

    def run(self, feeds: Mapping[str, Array]) -> float:
        """Run the model once; return how many microseconds that took.

        Raises:
            HieronnxError: If ONNX Runtime cannot run it on these inputs.
        """
        given = dict(feeds)
        begin = perf_counter()
        try:
            self._session.run(None, given)
        except Exception as error:  # of classes of its own, that share no other base
            reason = describe_error(error)
            raise HieronnxError(f"ONNX Runtime cannot run '{self._name}' on these inputs: {reason}") from error
        return (perf_counter() - begin) * 1e6

    def finish(self) -> Trace:
        """Turn the profiler off; return what it recorded."""
        path = Path(self._session.end_profiling())
        trace = read_trace(path)
        path.unlink()
        return trace

    @property
    def providers(self) -> tuple[str, ...]:
        """The execution providers of the session, in their order."""
        return tuple(self._session.get_providers())


@contextmanager
def open_profiled(
    opened: OpenedModel, *, optimization: str, providers: Sequence[str] = (), threads: int | None = None
) -> Iterator[ProfiledSession]:
    """Yield a session with the profiler on; what it writes is gone afterwards.

    Args:
        opened: The model.
        optimization: One of `LEVELS`.
        providers: Execution providers, by name or by what comes before `ExecutionProvider`; none: the CPU's.
        threads: How many threads an operator may use; None: as ONNX Runtime chooses.

    Raises:
        HieronnxError: If ONNX Runtime cannot load the model, or an option is wrong.
    """
    check_known("level of optimization", optimization, LEVELS)
    if threads is not None and threads < 1:
        raise InputError(f"{threads} threads are too few; give 1 or more, or none for ONNX Runtime's own choice")
    with open_references(opened) as (model, folder), tempfile.TemporaryDirectory(prefix="hieronnx-") as work:
        name_apart(model)
        _bring_small(model, folder)
        options = _make_options(optimization, threads, folder)
        yield ProfiledSession(opened.name, model, options, find_providers(providers), Path(work))


def _make_options(optimization: str, threads: int | None, folder: Path) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[optimization])
    options.enable_profiling = True
    options.log_severity_level = _FATAL_ONLY
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry(FOLDER_ENTRY, str(folder.absolute()))
    return options


def _bring_small(model: onnx.ModelProto, folder: Path) -> None:
    """Put the smallest weights into the model, as in files that others write: they tell nodes apart."""
    for tensor in model.graph.initializer:
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        if external and ir.serde.deserialize_tensor(tensor, base_path=folder).nbytes <= SMALL_TENSOR_BYTES:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")


def find_providers(names: Sequence[str]) -> list[str]:
    """Find the execution providers that names mean, whatever their case: `cuda` is CUDAExecutionProvider.

    Raises:
        InputError: If this ONNX Runtime has none of such a name.
    """
    import onnxruntime as ort

    available = {name.removesuffix(_PROVIDER).lower(): name for name in ort.get_available_providers()}
    short = [name.removesuffix(_PROVIDER).lower() for name in names]
    for name in short:
        check_known("execution provider", name, available, "this ONNX Runtime has")
    return [available[name] for name in dict.fromkeys(short)] or ["CPUExecutionProvider"]


def name_apart(model: onnx.ModelProto) -> None:
    """Give each node a name that no other has, and that a trace can hold: events tell of nodes by name alone."""
    nodes = [node for _, graph in walk_bodies(model.graph) for node in graph.node]
    taken: set[str] = set()
    for node in nodes:
        stem = node.name or f"{node.op_type} {first_name(node.output)}"
        stem = "".join(c if c.isprintable() and c not in '"\\' else "_" for c in stem)
        name, number = stem, 0
        while name in taken:
            number += 1
            name = f"{stem} ({number})"
        taken.add(name)
        if name != node.name:
            node.name = name


# -- placement --------------------------------------------------------------------------------------------


def find_assignments(
    opened: OpenedModel, entries: Mapping[str, str], providers: Sequence[str]
) -> dict[tuple[str, str], str]:
    """Find the execution provider that ONNX Runtime gives each node of the main graph and of bodies.

    Args:
        opened: The model.
        entries: Of the session's options.
        providers: As for `open_profiled`.

    Raises:
        HieronnxError: If ONNX Runtime cannot load the model with these options.
    """
    import onnxruntime as ort

    with open_references(opened) as (model, folder):
        name_apart(model)
        options = _make_options("none", None, folder)
        options.enable_profiling = False
        for key, value in {**entries, "session.record_ep_graph_assignment_info": "1"}.items():
            options.add_session_config_entry(key, value)
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=find_providers(providers))
        except Exception as error:  # of classes of its own, that share no other base
            raise HieronnxError(f"ONNX Runtime cannot load '{opened.name}': {describe_error(error)}") from error
        given = session.get_provider_graph_assignment_info()
        by_name = {node.name: part.ep_name for part in given for node in part.get_nodes()}
        nodes = ((key, node) for key, graph in walk_bodies(model.graph) for node in graph.node)
        return {(key, first_name(node.output)): by_name[node.name] for key, node in nodes if node.name in by_name}
