"""What commands that take a PyTorch model share: its target, its example inputs, and the options for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from hieronnx.capture.specs import InputSpec

_Command = TypeVar("_Command", bound=Callable[..., Any])


def input_options(command: _Command) -> _Command:
    """Add the options that say which example inputs the model gets."""
    specs = click.option(
        "--input-specs",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help='Example inputs from JSON: {"name": {"shape": [1, 8], "dtype": "int64", "range": [0, 99]}}.',
    )
    given = click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=DTYPE[SHAPE]",
        help="An example input, as in input_ids=int64[1,128]. May be repeated.",
    )
    return given(specs(command))


exporter_option = click.option(
    "--exporter",
    type=click.Choice(["auto", "dynamo", "torchscript"]),
    default="auto",
    show_default=True,
    help="torch's exporter; auto is dynamo, and TorchScript where that fails.",
)
torch_nn_option = click.option(
    "--torch-nn",
    default="default",
    show_default=True,
    metavar="default|all|none|NAMES",
    help="Which modules of torch.nn get a tag of their own; NAMES as in Linear,Conv2d.",
)
trust_option = click.option("--trust-remote-code", is_flag=True, help="Let a Hugging Face model run code of its own.")


def read_specs(inputs: Sequence[str], file: Path | None) -> list[InputSpec]:
    """Read the input specs; those on the command line replace those in the file."""
    from hieronnx.cli.syntax import parse_input, read_input_specs

    given = [parse_input(text) for text in inputs]
    names = {spec.name for spec in given}
    return [spec for spec in (read_input_specs(file) if file else ()) if spec.name not in names] + given


def load_with_inputs(
    target: str, specs: Sequence[InputSpec], trust_remote_code: bool, report: Callable[[str], None]
) -> tuple[Any, dict[str, Any]]:
    """Load the model that a target names, and make its example inputs."""
    from hieronnx.capture.inputs import make_inputs

    model = load_target(target, trust_remote_code, report)
    report("making inputs")
    return model, make_inputs(model, specs)


def load_target(target: str, trust_remote_code: bool, report: Callable[[str], None]) -> Any:
    """Load the model that a target names."""
    from hieronnx.capture.load import load_model

    report(f"loading {target}")
    return load_model(target, trust_remote_code=trust_remote_code)
