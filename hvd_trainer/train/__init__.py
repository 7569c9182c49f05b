"""L3: the visible training loop, exact evaluation, and callbacks, one a file."""
