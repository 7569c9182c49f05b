"""Measuring: what a step, an allreduce and a further rank cost, beside the libraries people use and beside the bound."""
