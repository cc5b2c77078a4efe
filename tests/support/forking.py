"""Children that begin with all that the parent has, for tests that limit, interrupt or kill them."""

from __future__ import annotations

import gc
import os


def fork() -> int:
    """Fork; return 0 in the child, which leaves the parent's objects alone.

    A session of ONNX Runtime waits for its threads when it goes, and threads do not come along: a child that collects
    one as garbage waits for ever.
    """
    gc.collect()
    child = os.fork()
    if child == 0:
        gc.freeze()
    return child
