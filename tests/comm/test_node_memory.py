"""Memory that ranks of a node share: what is in it, how they wait, and when it cannot be had."""

import os
import weakref

import pytest
import torch

from hvd_trainer.comm import node_memory
from hvd_trainer.comm.node_memory import _cell, obstacle, open_node_memory
from hvd_trainer.errors import CollectiveError, CollectiveTimeout
from tests.fake_comm import run_threads


def test_all_ranks_see_the_same_pieces_and_they_start_at_zero():
    def rank_main(comm):
        memory, problem = open_node_memory(comm, [40, 0, 8], 1, "m")
        assert problem == ""
        first, nothing, last = memory.tensor(10, torch.float32), memory.tensor(0, torch.float64), memory.tensor(1, torch.int64)
        assert first.tolist() == [0.0] * 10 and nothing.numel() == 0
        comm.barrier()
        if comm.rank == 1:
            first[3], last[0] = 7.0, 11
        memory.post(0, 1)
        memory.wait(0, 1, "the test")
        return first.tolist(), last.item(), first.data_ptr() % node_memory.ALIGN_BYTES, last.data_ptr() % node_memory.ALIGN_BYTES

    assert run_threads(3, rank_main) == [([0.0] * 3 + [7.0] + [0.0] * 6, 11, 0, 0)] * 3


def test_reached_asks_and_does_not_wait():
    def rank_main(comm):
        memory, _ = open_node_memory(comm, [], 2, "m")
        before = memory.reached(1, 1)
        comm.barrier()
        memory.post(1, 1)
        comm.barrier()
        return before, memory.reached(1, 1), memory.reached(1, 2), memory.reached(0, 0)

    assert run_threads(2, rank_main) == [(False, True, False, True)] * 2


def test_a_rank_that_does_not_come_is_an_error_after_the_time_limit():
    def rank_main(comm):
        comm.timeout_s, comm.where = 0.3, "step 4"
        memory, _ = open_node_memory(comm, [], 1, "m")
        if comm.rank == 1:
            return memory  # which stays
        with pytest.raises(CollectiveTimeout, match=r"rank 0 of 2 waited 0.3 s in gradient sum 'bucket 2' at step 4"):
            memory.wait(0, 1, "bucket 2")

    run_threads(2, rank_main)


def test_a_rank_that_has_left_is_named():
    def rank_main(comm):
        memory, _ = open_node_memory(comm, [], 1, "m")
        comm.barrier()
        if comm.rank == 1:
            comm.close()
            return
        with pytest.raises(CollectiveError, match="but rank 1 has ended its program"):
            memory.wait(0, 1, "bucket 0")

    run_threads(2, rank_main)


def test_nothing_has_a_name_or_stays_open():
    def rank_main(comm):
        comm.barrier()
        memory, _ = open_node_memory(comm, [1000], 1, "m")
        comm.barrier()
        return memory

    def named():
        return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}  # of other programs

    before = named(), len(os.listdir("/proc/self/fd"))
    memories = run_threads(2, rank_main)
    # Python's mmap keeps one descriptor of its own for each mapping.
    assert named() == before[0]
    assert len(os.listdir("/proc/self/fd")) <= before[1] + len(memories)


@pytest.mark.parametrize("who", [0, 1])
def test_one_rank_without_it_means_none_has_it(who, monkeypatch):
    real = node_memory._attach

    def attach(pid, number, size_bytes, comm, num_counters):
        if comm.rank == who:
            return None, f"rank {who} cannot"
        return real(pid, number, size_bytes, comm, num_counters)

    monkeypatch.setattr(node_memory, "_attach", attach)
    assert run_threads(2, lambda comm: open_node_memory(comm, [8], 1, "m")) == [(None, f"rank {who} cannot")] * 2


def test_another_processs_descriptor_is_not_taken_for_it():
    def rank_main(comm):
        return node_memory._attach(os.getpid(), os.memfd_create("other"), 4096, comm, 1)[1]

    assert "does not find the memory" in run_threads(1, rank_main)[0]
    assert "cannot open the memory" in run_threads(1, lambda comm: node_memory._attach(os.getpid(), 9999, 4096, comm, 1))[0][1]


def test_other_processors_do_not_share(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "aarch64" in obstacle(torch.device("cpu"))


def test_memory_left_in_a_container(tmp_path):
    from hvd_trainer.cores import cgroup_memory_left

    assert cgroup_memory_left(tmp_path) is None
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("5\n")
    assert cgroup_memory_left(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert cgroup_memory_left(tmp_path) == 600
    (tmp_path / "memory.current").write_text("1400\n")
    assert cgroup_memory_left(tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert cgroup_memory_left(tmp_path) is None


def test_memory_that_nobody_holds_is_given_back():
    """A search trains hundreds of models in one job."""

    def rank_main(comm):
        held = []
        for number in range(3):
            memory, _ = open_node_memory(comm, [1 << 20], 1, f"memory{number}")
            held.append(weakref.ref(memory._map))
            del memory
        return [each() is None for each in held]

    assert run_threads(2, rank_main) == [[True] * 3] * 2


def test_who_waits_for_a_rank_that_gave_its_memory_up_is_told():
    def rank_main(comm):
        memory, _ = open_node_memory(comm, [8], 1, "memory")
        if comm.rank:
            del memory
            return "gave it up"
        with pytest.raises(CollectiveError, match="rank 1"):
            memory.wait(0, 1, "the gradients")
        return "told"

    assert run_threads(2, rank_main) == ["told", "gave it up"]


def test_a_process_that_a_rank_has_forked_does_not_leave_for_it():
    def rank_main(comm):
        memory, _ = open_node_memory(comm, [8], 1, "memory")
        leave = comm.on_close[-1]
        if comm.rank:
            child = os.fork()
            if not child:
                leave()
                os._exit(0)
            os.waitpid(child, 0)
        comm.barrier()
        left = [memory._cells[_cell(rank, 1, 1)] for rank in range(2)]
        comm.barrier()
        return left

    assert run_threads(2, rank_main) == [[0, 0]] * 2
