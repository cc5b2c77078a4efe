"""The PyTorch model that a command is about: its target and its example inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hieronnx.capture.specs import InputSpec


@dataclass(frozen=True, slots=True)
class Loading:
    """What is needed to get the model, read before anything slow begins."""

    target: str
    specs: Sequence[InputSpec]
    trust_remote_code: bool

    def load(self, report: Callable[[str], None]) -> Any:
        """Load the model."""
        from hieronnx.capture.load import load_model

        report(f"loading {self.target}")
        return load_model(self.target, trust_remote_code=self.trust_remote_code)

    def load_with_inputs(self, report: Callable[[str], None]) -> tuple[Any, dict[str, Any]]:
        """Load the model, and make its example inputs."""
        from hieronnx.capture.inputs import make_inputs

        model = self.load(report)
        report("making inputs")
        return model, make_inputs(model, self.specs)


def read_loading(target: str, options: dict[str, Any]) -> Loading:
    """Read what `model_options` declares, and take all but `torch_nn` out of the options.

    Raises:
        InputError: If one of them cannot be read.
    """
    from hieronnx.cli.syntax import parse_input, read_input_specs
    from hieronnx.hierarchy.tags import TagPolicy

    TagPolicy.parse(options.get("torch_nn", "default"))
    given = [parse_input(text) for text in options.pop("inputs")]
    names = {spec.name for spec in given}  # these replace the file's
    path = options.pop("input_specs")
    listed = [spec for spec in read_input_specs(path) if spec.name not in names] if path else []
    return Loading(target, [*listed, *given], options.pop("trust_remote_code"))
