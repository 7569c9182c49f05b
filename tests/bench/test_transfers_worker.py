"""What a rank of `bench allreduce` does, on threads."""

from hvd_trainer.bench import transfers, transfers_worker, ways
from hvd_trainer.bench.job import Job
from tests.fake_comm import run_threads


def test_times_and_sums_of_every_column():
    columns = (transfers.BY_NAME["mpi"], transfers.BY_NAME["copy"])
    job = Job(columns, (), 1, "", blocks=2)

    def rank(comm):
        meeting = ways.Meeting(comm.rank, comm.size, lambda: comm.barrier("b"), comm.close, comm)
        return transfers_worker.measure(job, num_floats=256, steps=6, warmup=2, meeting=meeting)

    answers = run_threads(3, rank)
    for answer in answers:
        assert answer["mpi"]["losses"] == [6.0, 6.0]  # 1 + 2 + 3
        assert len(answer["mpi"]["ms"]) == len(answer["copy"]["ms"]) == 6 and min(answer["copy"]["ms"]) > 0
