"""Projecting the calls of a run onto the nodes of a file."""

from __future__ import annotations

from collections.abc import Sequence

from hieronnx.attribute.by_value.filling import Filler
from hieronnx.attribute.by_value.matching import Matcher
from hieronnx.attribute.by_value.projection import Found, Projection
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import Attribution


def project(scene: Projection, tree: CallTree, varying: Sequence[int]) -> list[Attribution | None]:
    """Attribute every node of a file that there is evidence for.

    Args:
        scene: The file and the run; what is found is noted there.
        tree: The calls.
        varying: The tensors of the file that depend on its inputs.
    """
    Matcher(scene).run()
    Filler(scene, varying).run()
    return [None if found is None else _attribute(scene, found, tree) for found in scene.found]


def _attribute(scene: Projection, found: Found, tree: CallTree) -> Attribution:
    evidence = "near" if scene.classes.near and found.evidence == "value" else found.evidence
    scopes = scene.scopes(found.ops)
    if found.merged:
        return Attribution(scopes[0], scopes, evidence, found.rule)
    if not found.rule:  # what the run does on the way to these values, and the file nowhere else, the node does
        scopes = scene.scopes(scene.region(found.ops))
    return Attribution(tree.lowest_above(scopes), scopes, evidence, found.rule)
