"""`hieronnx export`: a model to ONNX, with its hierarchy."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hieronnx.cli.console import print_json, print_text, use_colour, working
from hieronnx.cli.files import list_files
from hieronnx.cli.model import (
    exporter_option,
    input_options,
    load_with_inputs,
    read_specs,
    torch_nn_option,
    trust_option,
)

if TYPE_CHECKING:
    from hieronnx.capture.specs import InputSpec
    from hieronnx.tools.export import ExportResult


@click.command("export", short_help="Export a PyTorch model, every node with the call that made it.")
@click.argument("target")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The ONNX file to write.",
)
@input_options
@click.option(
    "--dynamic",
    multiple=True,
    metavar="NAME:AXIS=LABEL,…",
    help="Dynamic axes of an input, as in input_ids:0=batch,1=sequence. May be repeated.",
)
@exporter_option
@click.option("--opset", type=click.IntRange(min=1), metavar="N", help="The opset; torch's default if not given.")
@torch_nn_option
@click.option("--no-embed", is_flag=True, help="Write no hierarchy into the ONNX file.")
@click.option("--no-sidecar", is_flag=True, help="Write no _hierarchy.json beside it.")
@click.option("--strip-torch-metadata", is_flag=True, help="Leave out torch's own metadata on the nodes.")
@click.option(
    "--strategy",
    type=click.Choice(["captured", "htp", "usage_based"]),
    default="captured",
    show_default=True,
    help="How nodes are attributed: captured, what the exporter itself recorded; htp, by what they compute; "
    "usage_based, by parameters and dataflow.",
)
@click.option(
    "--verify-topology",
    is_flag=True,
    help="Export with torch alone, too, and prove that the graph is the same; exit code 1 if it is not.",
)
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def export_command(
    context: click.Context,
    /,
    target: str,
    output: Path,
    inputs: tuple[str, ...],
    input_specs: Path | None,
    dynamic: tuple[str, ...],
    as_json: bool,
    trust_remote_code: bool,
    **options: Any,
) -> None:
    """Export TARGET to ONNX, every node with the module call that made it.

    \b
    TARGET is one of
      demo                    the built-in model
      package.module:object   an nn.Module, a class or a function that makes one
      file.py:object          the same, from a file
      FOLDER or HUB_ID        a Hugging Face model

    \b
    Examples:
      hieronnx export demo -o demo.onnx
      hieronnx export net.py:Net -o net.onnx --input 'x=float32[1,3,64,64]' --dynamic x:0=batch
    """  # noqa: D301  click wants the backspace itself
    request = _Request(read_specs(inputs, input_specs), _read_dynamic(dynamic), _read_options(**options))
    with working(debug=context.obj) as report:
        result = _run(target, output, request, trust_remote_code, report)
    if as_json:
        print_json(_to_json(result))
    else:
        _print_result(result)
    if result.topology is not None and not result.topology.same:
        context.exit(1)


@dataclass(frozen=True, slots=True)
class _Request:
    """The options of an export, read before anything slow begins."""

    specs: list[InputSpec]
    dynamic: dict[str, dict[int, str]]
    options: dict[str, Any]


def _read_dynamic(texts: Sequence[str]) -> dict[str, dict[int, str]]:
    from hieronnx.cli.syntax import parse_dynamic

    dynamic: dict[str, dict[int, str]] = {}
    for name, axes in map(parse_dynamic, texts):
        dynamic.setdefault(name, {}).update(axes)
    return dynamic


def _read_options(
    *,
    exporter: str,
    opset: int | None,
    torch_nn: str,
    no_embed: bool,
    no_sidecar: bool,
    strip_torch_metadata: bool,
    strategy: str,
    verify_topology: bool,
) -> dict[str, Any]:
    """Turn the flags into options of `hieronnx.export`."""
    from hieronnx.hierarchy.tags import TagPolicy

    TagPolicy.parse(torch_nn)
    return {
        "exporter": exporter,
        "torch_nn": torch_nn,
        "embed": not no_embed,
        "sidecar": not no_sidecar,
        "strip_torch_metadata": strip_torch_metadata,
        "strategy": strategy,
        "verify_topology": verify_topology,
        **({} if opset is None else {"opset_version": opset}),
    }


def _run(
    target: str, output: Path, request: _Request, trust_remote_code: bool, report: Callable[[str], None]
) -> ExportResult:
    """Load the model, make its inputs and export it."""
    from hieronnx.capture.inputs import to_dynamic_shapes
    from hieronnx.tools.export import export

    model, kwargs = load_with_inputs(target, request.specs, trust_remote_code, report)
    shapes = to_dynamic_shapes(model, kwargs, request.dynamic)
    options = request.options if shapes is None else {**request.options, "dynamic_shapes": shapes}
    if all(hasattr(value, "dtype") for value in kwargs.values()):
        options = {**options, "input_names": list(kwargs)}  # TorchScript would make up names of its own
    return export(model, (), output, kwargs, progress=report, **options)


def _suggest_next(result: ExportResult) -> str | None:
    """Return the command to try next; without a hierarchy in the files there is none."""
    return f"hieronnx tree {shlex.quote(str(result.path))}" if result.hierarchy.calls else None


def _print_result(result: ExportResult) -> None:
    from hieronnx.report.summary import render_coverage, render_files, render_model

    colour, command = use_colour(), _suggest_next(result)
    files = render_files(list_files(result), colour=colour)
    if command is None:
        blocks = [files, "no hierarchy was written: --no-embed and --no-sidecar leave it nowhere to be"]
    else:
        model = render_model(result.hierarchy, colour=colour)
        blocks = [files, model, render_coverage(result.hierarchy, colour=colour), f"next: {command}"]
    print_text(*filter(None, blocks), *_describe_topology(result, colour))


def _describe_topology(result: ExportResult, colour: bool) -> list[str]:
    """Say how the file compares with torch's own export, if it was compared."""
    from hieronnx.report.comparison import render_comparison

    if result.topology is None:
        return []
    if result.topology.same:
        return [f"topology: what torch.onnx.export writes, {result.topology.pairs:,} nodes"]
    return [render_comparison(result.topology, colour=colour)]


def _to_json(result: ExportResult) -> dict[str, Any]:
    from hieronnx.report.comparison import comparison_to_json
    from hieronnx.report.summary import summary_to_json

    return {
        "model": str(result.path),
        "sidecar": None if result.sidecar is None else str(result.sidecar),
        "files": [{"path": str(file.path), "bytes": file.size} for file in list_files(result)],
        "exporter": result.exporter,
        "opset": result.hierarchy.model.get("opset"),
        "inputs": result.hierarchy.model.get("inputs"),
        "outputs": result.hierarchy.model.get("outputs"),
        "fallback": result.fallback,
        "topology": None if result.topology is None else comparison_to_json(result.topology),
        "summary": summary_to_json(result.hierarchy),
        "next": _suggest_next(result),
    }
