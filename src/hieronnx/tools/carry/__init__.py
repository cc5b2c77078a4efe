"""Carry: the hierarchy of a model onto what a tool made of it."""

from hieronnx.tools.carry.carrying import carry, carry_temporary
from hieronnx.tools.carry.result import CarryResult, LostCall, RewrittenNodes

__all__ = ["CarryResult", "LostCall", "RewrittenNodes", "carry", "carry_temporary"]
