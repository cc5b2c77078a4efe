"""Running an ONNX file as it is written, with its inner tensors handed out one by one.

The file runs in ONNX Runtime, nothing optimized. A first run measures how large each tensor is; then it runs as
often as needed to see them all, each time with no more of them than fit into a bounded buffer. Weights stay where
they are: what runs is the structure of the file, which refers to the file for its weights.

Tensors of bodies are seen too: the branch that an `If` takes is put in its place, as are functions; a tensor in the
body of a `Loop` or `Scan` is handed out once for each iteration.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, describe_error, require
from hieronnx.files.external import check_data
from hieronnx.files.opening import OpenedModel
from hieronnx.files.weights import Span
from hieronnx.files.wire import locate_initializers, locate_raw_data, read_skeleton
from hieronnx.graph.walks import find_readers
from hieronnx.hierarchy.hierarchy import NodeKey
from hieronnx.runtime.flattening import Exposure, Flat, flatten
from hieronnx.runtime.inputs import FileInput, describe_inputs
from hieronnx.runtime.precise import is_coarse
from hieronnx.runtime.unrounded import has_rounding, undo_rounding

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Visit: TypeAlias = Callable[[str, str, Array], None]
"""Called with the key of a graph, the name of a tensor in it, and its values."""

_BUFFER = 1 << 28
CPU = "CPUExecutionProvider"
_TENSOR = re.compile(r"tensor\((\w+)\)")
_WIDEST = 8  # bytes an element, before its type is known
FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"


class Runner:
    """A file that can be run as often as one likes."""

    def __init__(
        self,
        name: str,
        model: onnx.ModelProto,
        folder: Path,
        *,
        threads: int,
        buffer: int,
        providers: Sequence[str] = (CPU,),
    ) -> None:
        self._name, self._model, self._folder = name, model, folder
        self._threads, self._buffer, self._providers = threads, buffer, list(providers)

    @property
    def inputs(self) -> tuple[FileInput, ...]:
        """What the file must be given, initializers left out."""
        return describe_inputs(self._model.graph)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what the file gives."""
        return tuple(value.name for value in self._model.graph.output)

    @property
    def has_rounding(self) -> bool:
        """Whether it computes with numbers in few bits."""
        return has_rounding(self._model)

    @property
    def is_coarse(self) -> bool:
        """Whether it computes with less than single precision anywhere."""
        return is_coarse(self._model)

    def find_readers(self) -> dict[NodeKey, list[NodeKey]]:
        """Return for each node of the file those that read what it makes."""
        return find_readers(ir.serde.deserialize_model(self._model))

    def run(self, feeds: Mapping[str, Array], names: Sequence[str] | None = None) -> dict[str, Array]:
        """Run the file once; return the tensors named, by default its outputs."""
        return self.run_model(self._model, feeds, self.outputs if names is None else names)

    def run_exposed(
        self, feeds: Mapping[str, Array], visit: Visit, *, wanted: Callable[[str, str], bool] | None = None
    ) -> tuple[str, ...]:
        """Run the file and hand out the values of its inner tensors, each to be used at once and not kept.

        Args:
            feeds: The inputs.
            visit: Called for each tensor that a node made; for each of its values where it has several.
            wanted: Says by graph and name which tensors are of use; all by default.

        Returns:
            What could not be seen, and why.

        Raises:
            HieronnxError: If ONNX Runtime cannot run the file.
        """
        flat = self.flatten(feeds)
        exposures = [e for e in flat.exposures if wanted is None or wanted(e.graph, e.name)]
        sizes, hidden = self._measure(flat, exposures, feeds)
        for chunk in _divide([e for e in exposures if e.exposed in sizes], sizes, self._buffer // _WIDEST):
            values = self.run_model(flat.expose(chunk), feeds, [exposure.exposed for exposure in chunk])
            for exposure in chunk:
                array = values.pop(exposure.exposed)
                for one in array if exposure.repeats else (array,):
                    visit(exposure.graph, exposure.name, np.asarray(one))
        return (*flat.hidden, *hidden)

    def flatten(self, feeds: Mapping[str, Array]) -> Flat:
        """Return the flat form of the file, with the branches that it takes on these inputs.

        Raises:
            HieronnxError: If ONNX Runtime cannot run the file.
        """
        return flatten(self._model, lambda model, names: self.run_model(model, feeds, names))

    def _measure(
        self, flat: Flat, exposures: Sequence[Exposure], feeds: Mapping[str, Array]
    ) -> tuple[dict[str, int], list[str]]:
        """Run once for the number of elements of each tensor; what changes size while a loop runs cannot be seen."""
        model, names = flat.measure(exposures)
        values = self.run_model(model, feeds, list(names.values()))
        sizes, hidden = {}, []
        for exposure in exposures:
            counts = np.atleast_1d(values[names[exposure.exposed]])
            if counts.size and (counts != counts[0]).any():
                hidden.append(f"'{exposure.name}' in {exposure.graph}: it changes size from one iteration to the next")
            else:
                sizes[exposure.exposed] = int(counts.sum())
        return sizes, hidden

    def run_model(self, model: onnx.ModelProto, feeds: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Run a model made of the file's nodes and weights; return the tensors named.

        Raises:
            HieronnxError: If ONNX Runtime cannot run it.
        """
        import onnxruntime as ort

        if not names:
            return {}
        options = _make_options(self._folder, self._threads)
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=self._providers)
            return dict(zip(names, session.run(list(names), dict(feeds)), strict=True))
        except Exception as error:  # of classes of its own, that share no other base
            reason = describe_error(error)
            raise HieronnxError(f"ONNX Runtime cannot run '{self._name}' on these inputs: {reason}") from error

    def read_initializers(self, visit: Visit) -> None:
        """Hand out the initializers of the main graph one by one; weights in files are read as they are needed."""
        for tensor in self._model.graph.initializer:
            if tensor.data_type != onnx.TensorProto.STRING:
                visit("", tensor.name, ir.serde.deserialize_tensor(tensor, base_path=self._folder).numpy())


def _make_options(folder: Path, threads: int) -> Any:
    """Return the options under which a file runs as it is, with its weights in files of a folder."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry(FOLDER_ENTRY, str(folder.absolute()))
    options.add_session_config_entry("session.disable_prepacking", "1")  # it would copy the weights
    return options


def _divide(exposures: Iterable[Exposure], sizes: Mapping[str, int], limit: int) -> Iterator[list[Exposure]]:
    """Divide tensors, in order, so that no group has more elements than the limit; but for one alone that has."""
    chunk: list[Exposure] = []
    elements = 0
    for exposure in exposures:
        size = sizes[exposure.exposed]
        if chunk and elements + size > limit:
            yield chunk
            chunk, elements = [], 0
        chunk.append(exposure)
        elements += size
    if chunk:
        yield chunk


# -- a file as it is, run often -----------------------------------------------------------------------------------


class Session:
    """A file that is loaded once and run often, on chosen execution providers."""

    def __init__(self, path: Path, session: Any) -> None:
        self._path, self._session = path, session

    def run(self, feeds: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Run the file; return the outputs named.

        Raises:
            HieronnxError: If ONNX Runtime cannot run it.
        """
        try:
            return dict(zip(names, self._session.run(list(names), dict(feeds)), strict=True))
        except Exception as error:  # of classes of its own, that share no other base
            reason = describe_error(error)
            raise HieronnxError(f"ONNX Runtime cannot run '{self._path}' on these inputs: {reason}") from error


def open_session(path: Path, *, providers: Sequence[str], optimized: bool) -> Session:
    """Load a file into ONNX Runtime.

    Raises:
        HieronnxError: If it cannot be loaded.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return Session(path, ort.InferenceSession(path, options, providers=list(providers)))
    except Exception as error:  # of classes of its own, that share no other base
        raise HieronnxError(f"ONNX Runtime cannot load '{path}': {describe_error(error)}") from error


def read_element_types(path: Path, names: Sequence[str]) -> dict[str, int]:
    """Return the element types of inner tensors of a file's main graph, as ONNX Runtime knows them, without a run.

    What is no tensor is left out.

    Raises:
        HieronnxError: If it cannot be loaded.
    """
    import onnxruntime as ort

    model, listed = _refer(path), {value.name for value in read_skeleton(path).graph.output}
    for name in names:
        if name not in listed:
            model.graph.output.add(name=name)
    try:
        options = _make_options(path.parent, threads=1)
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
    except Exception as error:  # of classes of its own, that share no other base
        raise HieronnxError(f"ONNX Runtime cannot load '{path}': {describe_error(error)}") from error
    wanted = set(names)
    found = ((value.name, _TENSOR.fullmatch(value.type)) for value in session.get_outputs() if value.name in wanted)
    return {name: onnx.TensorProto.DataType.Value(kind[1].upper()) for name, kind in found if kind is not None}


# -- the file without its weights -----------------------------------------------------------------------------


@contextmanager
def open_runner(
    opened: OpenedModel,
    *,
    threads: int = 1,
    buffer: int = _BUFFER,
    rounding: bool = True,
    providers: Sequence[str] = (CPU,),
) -> Iterator[Runner]:
    """Yield what runs a model; for a model in memory its weights are written to a file that is gone afterwards.

    Args:
        opened: The model.
        rounding: Whether a quantized model runs as it is; else with floats, as far as that can be done.
        threads: How many threads ONNX Runtime may use for one operator.
        buffer: How many bytes of inner tensors may be in memory at once; one tensor alone may be larger.
        providers: The execution providers to run it on.

    Raises:
        MissingExtraError: If ONNX Runtime is not installed.
    """
    with open_references(opened) as (model, folder):
        prepared = model if rounding else undo_rounding(model)
        yield Runner(opened.name, prepared, folder, threads=threads, buffer=buffer, providers=providers)


@contextmanager
def open_references(opened: OpenedModel) -> Iterator[tuple[onnx.ModelProto, Path]]:
    """Yield the structure of a model, with initializers that refer to files of a folder for their elements.

    Raises:
        MissingExtraError: If ONNX Runtime is not installed.
    """
    require("onnxruntime", "runtime")
    with as_file(opened) as path:
        yield _refer(path), path.parent


@contextmanager
def as_file(opened: OpenedModel) -> Iterator[Path]:
    """Yield the file of a model, whose data is there; one in memory is written to a file that is gone afterwards."""
    if opened.path is not None:
        check_data(opened.path)
        yield opened.path
        return
    with tempfile.TemporaryDirectory(prefix="hieronnx-") as folder:
        path = Path(folder) / "model.onnx"
        ir.save(opened.model, path, external_data="weights")
        yield path


def _refer(path: Path) -> onnx.ModelProto:
    """Return the structure of a file, with initializers that refer to the file for their elements."""
    model = read_skeleton(path)
    raw = locate_raw_data(path)
    located: Mapping[str, tuple[int, int]] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL or _has_elements(tensor):
            continue
        if tensor.name in raw:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in zip(("location", "offset", "length"), (path.name, *raw[tensor.name]), strict=True):
                tensor.external_data.add(key=key, value=str(value))
        else:
            located = located or locate_initializers(path)
            tensor.ParseFromString(Span(path, *located[tensor.name]).read())
    return model


def _has_elements(tensor: onnx.TensorProto) -> bool:
    if not np.prod(tensor.dims, dtype=np.int64):
        return True
    return any(field.name.endswith("_data") and field.name != "external_data" for field, _ in tensor.ListFields())
