"""What is here and what is missing; works where torch, MPI and Horovod are not installed.

Every question that imports something is asked in a process of its own with a time limit, so that a library which
crashes or hangs is a finding, not the end of the doctor.
"""
