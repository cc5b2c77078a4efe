"""The PyTorch model that a command is about: its target and its example inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hieronnx.capture.specs import InputSpec


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model and its example inputs.

    Attributes:
        model: The model.
        args: The inputs by position.
        kwargs: The inputs by keyword.
        made_up: The inputs that nobody gave, and what they are made from.
        options: Options of torch that go with them: names and dynamic axes.
    """

    model: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    made_up: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loading:
    """What is needed to get the model, read before anything slow begins."""

    target: str
    specs: Sequence[InputSpec]
    inputs_from: str | None
    trust_remote_code: bool
    with_past: bool = False

    @property
    def gives_all(self) -> bool:
        """Whether all inputs are given, so that none are made from a file."""
        return self.with_past or self.inputs_from is not None

    def load(self, report: Callable[[str], None]) -> Any:
        """Load the model."""
        from hieronnx.capture.load import load_model

        report(f"loading {self.target}")
        return load_model(self.target, trust_remote_code=self.trust_remote_code, use_cache=self.with_past)

    def load_with_inputs(self, report: Callable[[str], None], file: Path | None = None) -> Loaded:
        """Load the model, and make its example inputs; where they are not known, those that a file of it takes."""
        from hieronnx.capture.inputs import make_examples
        from hieronnx.errors import InputError

        model = self.load(report)
        report("making inputs")
        if self.inputs_from is not None:
            from hieronnx.capture.arguments import call_maker

            return Loaded(model, *call_maker(self.inputs_from, model))
        if self.with_past:
            from hieronnx.tools.past import with_past

            given = with_past(model)
            kwargs = given.pop("kwargs")
            return Loaded(model, (), kwargs, dict.fromkeys(given["input_names"], "config"), given)
        try:
            examples = make_examples(model, self.specs)
        except InputError:
            if file is None:
                raise
            return Loaded(model, (), self._make_for_file(file, model))
        return Loaded(model, (), examples.values, examples.made_up)

    def load_beside(self, arrays: Path | None, report: Callable[[str], None], file: Path | None = None) -> Loaded:
        """Load the model; where arrays are its inputs, with what is given beside them alone, whose places they take."""
        if arrays is None or self.specs or self.gives_all:
            return self.load_with_inputs(report, file)
        return Loaded(self.load(report))

    def load_for_file(self, file: Path, report: Callable[[str], None]) -> Loaded:
        """Load the model; what is not given of its inputs is made from what an ONNX file of it takes."""
        if self.gives_all:
            return self.load_with_inputs(report)
        model = self.load(report)
        report("making inputs")
        return Loaded(model, (), self._make_for_file(file, model))

    def _make_for_file(self, file: Path, model: Any) -> dict[str, Any]:
        from hieronnx.attribute.file_inputs import make_file_inputs
        from hieronnx.attribute.nested_inputs import read_recorded_file
        from hieronnx.runtime.inputs import read_inputs

        recorded = read_recorded_file(file)
        return make_file_inputs(read_inputs(file), model, self.specs, name=str(file), recorded=recorded)


def read_loading(target: str, options: dict[str, Any]) -> Loading:
    """Read what `model_options` declares, and take all but `torch_nn` out of the options.

    Raises:
        HieronnxError: If one of them cannot be read, or names what is not there; nothing slow is imported for that.
    """
    from hieronnx.capture.load import check_reference, check_target, is_reference, list_torch_nn

    check_target(target)
    from hieronnx.cli.syntax import parse_input, read_input_specs
    from hieronnx.errors import InputError
    from hieronnx.hierarchy.tags import TagPolicy

    TagPolicy.parse(options.get("torch_nn", "default"), list_torch_nn())
    given = [parse_input(text) for text in options.pop("inputs")]
    names = {spec.name for spec in given}  # these replace the file's
    path = options.pop("input_specs")
    listed = [spec for spec in read_input_specs(path) if spec.name not in names] if path else []
    specs, maker, with_past = [*listed, *given], options.pop("inputs_from"), options.pop("with_past", False)
    if specs and (maker is not None or with_past):
        option = "--inputs-from" if maker is not None else "--with-past"
        raise InputError(f"{option} gives all inputs; it does not go with --input and --input-specs")
    if with_past and (is_reference(target) or target == "demo"):
        raise InputError("--with-past is of Hugging Face models; in Python, export(model, **hieronnx.with_past(model))")
    if maker is not None:
        check_reference(maker)
    return Loading(target, specs, maker, options.pop("trust_remote_code"), with_past)
