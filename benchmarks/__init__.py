"""Measurements beside libraries that are not dependencies; `python benchmarks/run.py` runs them all."""
