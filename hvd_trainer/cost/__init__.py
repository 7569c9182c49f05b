"""What a step costs: models of links, of allreduce and of a step's time, fitted to short measurements."""
