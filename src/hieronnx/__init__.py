"""hieronnx: the PyTorch module hierarchy as a coordinate system for ONNX. What users may import is in `__all__`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hieronnx._version import __version__ as __version__

if TYPE_CHECKING:  # for type checkers and editors; a test holds it and the table below together
    from hieronnx.attribute.file import Disagreement as Disagreement
    from hieronnx.errors import AmbiguousTargetError as AmbiguousTargetError
    from hieronnx.errors import ExportError as ExportError
    from hieronnx.errors import HieronnxError as HieronnxError
    from hieronnx.errors import InputError as InputError
    from hieronnx.errors import MismatchError as MismatchError
    from hieronnx.errors import MissingExtraError as MissingExtraError
    from hieronnx.errors import TargetError as TargetError
    from hieronnx.files.claims import Finding as Finding
    from hieronnx.files.opening import load as load
    from hieronnx.hierarchy.hierarchy import CallTree as CallTree
    from hieronnx.hierarchy.hierarchy import Hierarchy as Hierarchy
    from hieronnx.hierarchy.records import Attribution as Attribution
    from hieronnx.hierarchy.records import BoundTensor as BoundTensor
    from hieronnx.hierarchy.records import Call as Call
    from hieronnx.hierarchy.records import CallId as CallId
    from hieronnx.hierarchy.records import Initializer as Initializer
    from hieronnx.hierarchy.records import Module as Module
    from hieronnx.hierarchy.records import Node as Node
    from hieronnx.hierarchy.tags import TagPolicy as TagPolicy
    from hieronnx.tools.analyze.counting import analyze as analyze
    from hieronnx.tools.analyze.formulas import Formula as Formula
    from hieronnx.tools.analyze.formulas import Term as Term
    from hieronnx.tools.analyze.result import AnalysisResult as AnalysisResult
    from hieronnx.tools.analyze.result import AnalyzedNode as AnalyzedNode
    from hieronnx.tools.analyze.result import CategoryShare as CategoryShare
    from hieronnx.tools.analyze.result import ModuleLine as ModuleLine
    from hieronnx.tools.analyze.result import Tally as Tally
    from hieronnx.tools.analyze.result import TensorUse as TensorUse
    from hieronnx.tools.annotate import AnnotateResult as AnnotateResult
    from hieronnx.tools.annotate import annotate as annotate
    from hieronnx.tools.axes import AxesCheck as AxesCheck
    from hieronnx.tools.carry.carrying import carry as carry
    from hieronnx.tools.carry.result import CarryResult as CarryResult
    from hieronnx.tools.carry.result import LostCall as LostCall
    from hieronnx.tools.carry.result import RewrittenNodes as RewrittenNodes
    from hieronnx.tools.compare.comparing import compare as compare
    from hieronnx.tools.compare.result import ChangeGroup as ChangeGroup
    from hieronnx.tools.compare.result import ComparedNode as ComparedNode
    from hieronnx.tools.compare.result import CompareResult as CompareResult
    from hieronnx.tools.compare.result import Difference as Difference
    from hieronnx.tools.compare.result import ModuleWeights as ModuleWeights
    from hieronnx.tools.compare.result import NodeChange as NodeChange
    from hieronnx.tools.compare.result import ValueAmount as ValueAmount
    from hieronnx.tools.compare.result import ValueChange as ValueChange
    from hieronnx.tools.export import ExportResult as ExportResult
    from hieronnx.tools.export import HierarchyExporter as HierarchyExporter
    from hieronnx.tools.export import export as export
    from hieronnx.tools.extract.extracting import extract as extract
    from hieronnx.tools.extract.extracting import extract_all as extract_all
    from hieronnx.tools.extract.result import ConstantArgument as ConstantArgument
    from hieronnx.tools.extract.result import ExtractResult as ExtractResult
    from hieronnx.tools.extract.result import PartInput as PartInput
    from hieronnx.tools.extract.result import PartOutput as PartOutput
    from hieronnx.tools.fold.folding import fold as fold
    from hieronnx.tools.fold.result import FoldedFunction as FoldedFunction
    from hieronnx.tools.fold.result import FoldResult as FoldResult
    from hieronnx.tools.fold.result import InlineCall as InlineCall
    from hieronnx.tools.fold.result import UnfoldResult as UnfoldResult
    from hieronnx.tools.fold.unfolding import unfold as unfold
    from hieronnx.tools.locate import LocatedNode as LocatedNode
    from hieronnx.tools.locate import LocateResult as LocateResult
    from hieronnx.tools.locate import locate as locate
    from hieronnx.tools.optimize import optimize as optimize
    from hieronnx.tools.past import with_past as with_past
    from hieronnx.tools.place import PlacedNodes as PlacedNodes
    from hieronnx.tools.place import PlaceResult as PlaceResult
    from hieronnx.tools.place import place as place
    from hieronnx.tools.precision.quantizing import quantize as quantize
    from hieronnx.tools.precision.result import CallPrecision as CallPrecision
    from hieronnx.tools.precision.result import FloatNodes as FloatNodes
    from hieronnx.tools.precision.result import ModuleSensitivity as ModuleSensitivity
    from hieronnx.tools.precision.result import PrecisionReport as PrecisionReport
    from hieronnx.tools.precision.result import SensitivityResult as SensitivityResult
    from hieronnx.tools.precision.result import TargetSearch as TargetSearch
    from hieronnx.tools.precision.result import Trial as Trial
    from hieronnx.tools.precision.sensitivity import sensitivity as sensitivity
    from hieronnx.tools.profile.changes import CallChange as CallChange
    from hieronnx.tools.profile.changes import IsolatedCall as IsolatedCall
    from hieronnx.tools.profile.changes import ProfileComparison as ProfileComparison
    from hieronnx.tools.profile.profiling import profile as profile
    from hieronnx.tools.profile.result import CallTime as CallTime
    from hieronnx.tools.profile.result import Kernel as Kernel
    from hieronnx.tools.profile.result import KernelShare as KernelShare
    from hieronnx.tools.profile.result import Machine as Machine
    from hieronnx.tools.profile.result import ProfileResult as ProfileResult
    from hieronnx.tools.profile.result import TimeGroup as TimeGroup
    from hieronnx.tools.replace.replacing import replace as replace
    from hieronnx.tools.replace.result import ReplaceResult as ReplaceResult
    from hieronnx.tools.results import WrittenFile as WrittenFile
    from hieronnx.tools.select import Selection as Selection
    from hieronnx.tools.select import select as select
    from hieronnx.tools.split.pipeline import Pipeline as Pipeline
    from hieronnx.tools.split.result import CrossingTensor as CrossingTensor
    from hieronnx.tools.split.result import Cut as Cut
    from hieronnx.tools.split.result import SplitCheck as SplitCheck
    from hieronnx.tools.split.result import SplitResult as SplitResult
    from hieronnx.tools.split.result import Stage as Stage
    from hieronnx.tools.split.splitting import split as split
    from hieronnx.tools.validate.validating import ValidateResult as ValidateResult
    from hieronnx.tools.validate.validating import validate as validate
    from hieronnx.tools.verify.deviation import Deviation as Deviation
    from hieronnx.tools.verify.result import Culprit as Culprit
    from hieronnx.tools.verify.result import SkippedCall as SkippedCall
    from hieronnx.tools.verify.result import VerifiedCall as VerifiedCall
    from hieronnx.tools.verify.result import VerifyResult as VerifyResult
    from hieronnx.tools.verify.verifying import verify as verify
    from hieronnx.tools.view.viewing import ViewResult as ViewResult
    from hieronnx.tools.view.viewing import view as view

_NAMES = {
    "attribute.file": "Disagreement",
    "errors": "AmbiguousTargetError ExportError HieronnxError InputError MismatchError MissingExtraError TargetError",
    "files.claims": "Finding",
    "files.opening": "load",
    "hierarchy.hierarchy": "CallTree Hierarchy",
    "hierarchy.records": "Attribution BoundTensor Call CallId Initializer Module Node",
    "hierarchy.tags": "TagPolicy",
    "tools.analyze.counting": "analyze",
    "tools.analyze.formulas": "Formula Term",
    "tools.analyze.result": "AnalysisResult AnalyzedNode CategoryShare ModuleLine Tally TensorUse",
    "tools.annotate": "AnnotateResult annotate",
    "tools.axes": "AxesCheck",
    "tools.carry.carrying": "carry",
    "tools.carry.result": "CarryResult LostCall RewrittenNodes",
    "tools.compare.comparing": "compare",
    "tools.compare.result": "ChangeGroup CompareResult ComparedNode Difference ModuleWeights NodeChange "
    "ValueAmount ValueChange",
    "tools.export": "ExportResult HierarchyExporter export",
    "tools.extract.extracting": "extract extract_all",
    "tools.extract.result": "ConstantArgument ExtractResult PartInput PartOutput",
    "tools.fold.folding": "fold",
    "tools.fold.result": "FoldResult FoldedFunction InlineCall UnfoldResult",
    "tools.fold.unfolding": "unfold",
    "tools.locate": "LocateResult LocatedNode locate",
    "tools.optimize": "optimize",
    "tools.past": "with_past",
    "tools.place": "PlaceResult PlacedNodes place",
    "tools.profile.changes": "CallChange IsolatedCall ProfileComparison",
    "tools.profile.profiling": "profile",
    "tools.profile.result": "CallTime Kernel KernelShare Machine ProfileResult TimeGroup",
    "tools.precision.quantizing": "quantize",
    "tools.precision.result": "CallPrecision FloatNodes ModuleSensitivity PrecisionReport SensitivityResult "
    "TargetSearch Trial",
    "tools.precision.sensitivity": "sensitivity",
    "tools.replace.replacing": "replace",
    "tools.replace.result": "ReplaceResult",
    "tools.results": "WrittenFile",
    "tools.select": "Selection select",
    "tools.split.pipeline": "Pipeline",
    "tools.split.result": "CrossingTensor Cut SplitCheck SplitResult Stage",
    "tools.split.splitting": "split",
    "tools.validate.validating": "ValidateResult validate",
    "tools.verify.deviation": "Deviation",
    "tools.verify.result": "Culprit SkippedCall VerifiedCall VerifyResult",
    "tools.verify.verifying": "verify",
    "tools.view.viewing": "ViewResult view",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import hieronnx` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hieronnx' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"hieronnx.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
