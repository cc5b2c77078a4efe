"""Precision: which modules lose by 8 bits, and which must stay in float so that a target is met."""
