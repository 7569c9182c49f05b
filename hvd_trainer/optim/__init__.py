"""L2: exact averaging of gradients, learning-rate scaling and schedules, around the user's own torch optimizer."""
