"""L2: modules whose result depends on all ranks."""
