import signal

import pytest


@pytest.fixture
def ctrl_c_raises():
    """Also where the tests themselves were started in the background of a script, which ignores SIGINT for all it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
