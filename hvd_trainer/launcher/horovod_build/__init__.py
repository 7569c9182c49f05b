"""Building Horovod 0.28.1 against the installed torch, standard library only.

settings   what the environment says, read here and nowhere else
facts      what this machine has: python, torch, compiler, MPI, cmake, CUDA
needs      what of it is missing for a build, all at once, each with its cure
repairs    the few source lines that are known to be wrong, and their guards
source     the release's archive: from the cache, a folder or the package index; checked, unpacked
build      compiler wrapper, environment, `pip wheel`
progress   elapsed time and percentage while the compiler runs
finish     the wheel made movable and given its record
cache      the key of a wheel, and the folder that keeps wheels
verify     what the installed Horovod says it can do
explain    a failed build told as the requirement that is missing
"""

HOROVOD_VERSION = "0.28.1"
# Every mirror serves the same archive, so its checksum says at once whether the repairs below can apply.
HOROVOD_SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
