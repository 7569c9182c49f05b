"""`python -m tests.examples.in_float64 fashion_mnist.py ...`: an example in double precision, its arguments as ever."""

import runpy
import sys
from pathlib import Path

import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    del sys.argv[0]
    sys.path.insert(0, str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / sys.argv[0]), run_name="__main__")
