"""Preparing and starting jobs; imports without torch, MPI or Horovod, because a login node has none of them."""
