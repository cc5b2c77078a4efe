"""`hieronnx export`, `annotate` and `demo`: the commands that load a PyTorch model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hieronnx.cli.console import FOUND_SOMETHING, print_json, print_text, show_written, use_colour, working
from hieronnx.cli.options import exporter_option, model_options, path_argument, writing_options
from hieronnx.report.names import clean_line

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


@click.command("export", short_help="Export a PyTorch model, every node with the call that made it.")
@click.argument("target")
@writing_options
@model_options
@click.option(
    "--dynamic",
    multiple=True,
    metavar="NAME:AXIS=LABEL,…",
    help="Dynamic axes of an input, as in input_ids:0=batch,1=sequence. May be repeated.",
)
@exporter_option
@click.option("--opset", type=click.IntRange(min=1), metavar="N", help="The opset; torch's default if not given.")
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
@click.pass_context
def export_command(
    context: click.Context, /, target: str, dynamic: tuple[str, ...], opset: int | None, as_json: bool, **options: Any
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
    from hieronnx.cli.syntax import parse_dynamic
    from hieronnx.report.summary import render_export

    loading = read_loading(target, options)
    axes: dict[str, dict[int, str]] = {}
    for name, labels in map(parse_dynamic, dynamic):
        axes.setdefault(name, {}).update(labels)
    with working(debug=context.obj) as report:
        from hieronnx.capture.inputs import to_dynamic_shapes
        from hieronnx.tools.export import export

        model, kwargs = loading.load_with_inputs(report)
        shapes = to_dynamic_shapes(model, kwargs, axes)
        # TorchScript would make up names of its own.
        names = list(kwargs) if all(hasattr(value, "dtype") for value in kwargs.values()) else None
        given = {"opset_version": opset, "dynamic_shapes": shapes, "input_names": names}
        options |= {name: value for name, value in given.items() if value is not None}
        result = export(model, kwargs=kwargs, progress=report, **options)
    show_written(result, render_export, "tree" if result.hierarchy.calls else None, as_json=as_json)
    if result.topology is not None and not result.topology.same:
        context.exit(FOUND_SOMETHING)


@click.command("annotate", short_help="Give an ONNX file from elsewhere the hierarchy of its PyTorch model.")
@path_argument("file")
@click.option("--model", "target", required=True, metavar="TARGET", help="The PyTorch model, as for export.")
@writing_options
@model_options
@click.option(
    "--strategy",
    type=click.Choice(["htp", "usage_based"]),
    default="htp",
    show_default=True,
    help="htp: by the values that model and file compute; usage_based: by parameters and dataflow, nothing is run.",
)
@click.pass_context
def annotate_command(context: click.Context, /, file: Path, target: str, as_json: bool, **options: Any) -> None:
    """Give FILE the hierarchy of its PyTorch model, every node with how that is known.

    FILE may come from any exporter, with any names, and through optimizers. The model must have its weights. The graph
    stays as it is; -o may be FILE itself. Exit code 1 if FILE is not of this model: then nothing is written.

    \b
    TARGET is one of
      demo                    the built-in model
      package.module:object   an nn.Module, a class or a function that makes one
      file.py:object          the same, from a file
      FOLDER or HUB_ID        a Hugging Face model

    \b
    Examples:
      hieronnx annotate model.onnx --model ./bert -o annotated.onnx
      hieronnx annotate net.onnx --model net.py:load_net -o net.onnx --input 'x=float32[1,3,64,64]'
      hieronnx annotate model.onnx --model net.py:load_net -o annotated.onnx --strategy usage_based
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.errors import HieronnxError, MismatchError
    from hieronnx.report.summary import render_annotation

    loading = read_loading(target, options)
    if not file.is_file():  # before the model is loaded, which may take long
        raise HieronnxError(f"no ONNX file at '{file}'")
    try:
        with working(debug=context.obj) as report:
            from hieronnx.tools.annotate import annotate

            run = options["strategy"] == "htp"
            model, kwargs = loading.load_with_inputs(report) if run else (loading.load(report), {})
            result = annotate(file, model, (), kwargs, progress=report, **options)
    except MismatchError as error:
        if as_json:
            print_json(error.to_dict())
        else:
            click.echo(clean_line(str(error)), err=True)
        context.exit(FOUND_SOMETHING)
    show_written(result, render_annotation, "tree", as_json=as_json)


@click.command("demo")
@click.option(
    "-o",
    "--output",
    default="demo",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="The folder to write into; it is made if need be.",
)
@click.pass_obj
def demo_command(debug: bool, output: Path) -> None:
    """Export the built-in model and show its tree and coverage."""
    from hieronnx.report.summary import render_coverage, render_files
    from hieronnx.report.tree import grow_tree, render_tree

    with working(debug=debug) as report:
        from hieronnx.capture.inputs import make_inputs
        from hieronnx.capture.load import load_model
        from hieronnx.errors import ExportError
        from hieronnx.tools.export import export

        report("building the demo model")
        model = load_model("demo")
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExportError(f"cannot make the folder '{output}': {error.strerror}") from error
        result = export(model, kwargs=make_inputs(model), output=output / "demo.onnx", progress=report)
    colour = use_colour()
    print_text(
        render_tree(grow_tree(result.hierarchy), colour=colour),
        render_coverage(result.hierarchy, colour=colour),
        render_files(result.files, colour=colour),
        _suggest_next(result.path),
    )


def _suggest_next(path: Path) -> str:
    name = shlex.quote(str(path))
    commands = {
        f"hieronnx tree {name} '*Attention' --nodes": "the nodes of each attention",
        f"hieronnx tree {name} --all": "calls inside torch.nn too",
        f"hieronnx analyze {name} --depth 1": "what each module costs",
        f"hieronnx validate {name}": "is it true to the file?",
        "hieronnx export --help": "export a model of your own",
    }
    width = max(map(len, commands))
    return "\n".join(["try next:", *(f"  {command:{width}}  {what}" for command, what in commands.items())])
