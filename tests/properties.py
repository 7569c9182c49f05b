"""hypothesis as all tests use it: the same examples on every run, no time limit an example (machines are shared), no folder."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

__all__ = ["assume", "given", "settings", "st"]

settings.register_profile("hvd_trainer", deadline=None, derandomize=True, database=None, max_examples=60)
settings.load_profile("hvd_trainer")
