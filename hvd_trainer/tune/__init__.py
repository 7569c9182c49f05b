"""L4: measurements from which batch, rate and the rest of a recipe follow."""
