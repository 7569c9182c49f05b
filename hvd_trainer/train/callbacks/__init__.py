"""What may happen beside the loop, one callback a file."""
