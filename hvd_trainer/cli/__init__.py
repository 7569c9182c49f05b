"""The command line: one file per command; imports without torch, MPI or Horovod."""
