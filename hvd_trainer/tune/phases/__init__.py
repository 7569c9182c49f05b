"""What `tune` measures and predicts before it searches: one phase a file, each what to run and what it says (pure)."""
