"""Graphs of a few nodes that several tests of carry begin with."""

from __future__ import annotations

TWO_LINEAR = """
    main (float[2, 4] x) => (float[2, 4] y)
    <float[4, 4] v, float[4, 4] w> {
        a = MatMul (x, v)
        r = Relu (a)
        y = MatMul (r, w)
    }
"""
TWO_CALLS = {"a": "first", "r": "first", "y": "second"}

CONV_AND_NORM = """
    main (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y)
    <float[4, 4, 1, 1] w, float[4] s, float[4] b, float[4] m, float[4] v> {
        c = Conv (x, w)
        n = BatchNormalization (c, s, b, m, v)
        y = Relu (n)
    }
"""

EQUAL_WORK = """
    main (float[2, 4] x) => (float[2, 4] y) {
        a = Relu (x)
        b = Relu (x)
        y = Mul (a, b)
    }
"""
