"""L1: the ranks of one job and what they tell each other, behind one small interface with several engines."""
