"""The report of `hvd-trainer tune` as a page: sentences, plots and tables, from its JSON alone; needs no torch."""
