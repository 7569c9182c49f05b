"""What makes a program that tests start quick: most of its time is Python importing torch, and there are hundreds of them.

Seconds of CPU to import torch, make an optimizer and end: 5.4 as it is, 3.6 with `collect_less`, 1.9 with both (torch 2.13, the
least of six on a machine with other work).
"""

from __future__ import annotations

import atexit
import gc
import sys
import types

MARK = "HVD_TRAINER_TEST_RUN"  # in the environment of every process of a run, so that leftovers are found in /proc
LEAVE_OUT = "HVD_TRAINER_TEST_LEAVE_OUT"
NO_COMPILER = {LEAVE_OUT: "compiler"}  # `env=` of a start whose program makes optimizers and compiles nothing

def collect_less() -> None:
    """The objects of the imports stay; the garbage collector walks them again and again, and once more at exit."""
    gc.set_threshold(100_000, 20, 100)
    atexit.register(gc.freeze)


def leave_compiler_out() -> None:
    """torch imports its compiler (torch._dynamo) for the first optimizer, to tell it to keep out; here nobody is to be told."""
    if "torch._dynamo" not in sys.modules:
        absent = types.ModuleType("torch._dynamo", "The compiler is left out: tests/rank_start.py")
        absent.disable = lambda function, *args, **options: function
        absent.graph_break = lambda: None
        sys.modules["torch._dynamo"] = absent
