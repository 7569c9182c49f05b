"""A machine that has everything for a build."""

from hvd_trainer.launcher.horovod_build.cuda import Cuda
from hvd_trainer.launcher.horovod_build.facts import Facts

FACTS = Facts(
    python="cp311", machine="x86_64-glibc2.36", torch="2.13.0+cpu", torch_cuda="", standard=17,
    cxx="/usr/bin/c++", cxx_version="c++ 12.2.0", make="/usr/bin/make", cmake="/usr/bin/cmake",
    cmake_version=(3, 31, 10), mpicxx="/opt/mpi/bin/mpicxx", mpirun="/opt/mpi/bin/mpirun", mpi="Open MPI 5.0.11",
    cuda=Cuda(False, "", "", "", ""),
)  # fmt: skip
