"""L2: everything a run needs to go on at the exact sample, written so that a crash at any moment loses nothing."""
