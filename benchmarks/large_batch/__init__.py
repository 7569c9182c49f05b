"""The proof of issue 5 on real data: steps to a target over batches, and what the noise scale, the rules and `tune` make of them."""
