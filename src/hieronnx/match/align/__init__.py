"""Aligning two models node by node, with as few left over as possible."""
