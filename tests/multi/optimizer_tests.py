"""Program for several ranks: the tests of the optimizer and the reducer once more, with a real engine instead of threads.

Every rank runs the same tests in the same order; `run_threads` is this process's part of them. Tests for another number
of ranks are left out.
"""

import sys

import pytest

import hvd_trainer as ht
from hvd_trainer.comm import topology
from tests import fake_comm

FILES = [
    f"tests/optim/test_{name}.py" for name in ("distributed", "reducer", "gradient_places", "replicas", "norms_tap")
]


def main(comm):
    allreduce = comm.allreduce_
    comm.sent = []

    def noted(tensor, name, *args, **options):  # the public one: engine mpi has a short way for memory that it knows
        comm.sent.append(name)
        return allreduce(tensor, name, *args, **options)

    def run_launched(size, function, *, catch=False):
        if size != comm.size:
            pytest.skip(f"for {size} ranks")
        hosts = fake_comm.pretended_hosts(size)
        if len(set(hosts)) > 1 and not comm.has_bridges:
            pytest.skip(f"engine {comm.engine} does not join nodes")
        comm.sent.clear()
        comm.topology = topology.from_hosts(comm.rank, hosts)
        return comm.gather_objects(function(comm), comm.unique_name("results"))

    comm.allreduce_ = noted
    fake_comm.run_threads = run_launched
    code = pytest.main([*FILES, "-q", "-x", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=sys"])
    if code:
        sys.exit(int(code))


if __name__ == "__main__":
    ht.run(main)
