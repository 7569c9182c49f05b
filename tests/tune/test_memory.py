"""The memory probe: the search by itself, ranks that agree, and real processes that run out of memory."""

import math
import pickle

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError, HvdTrainerError
from hvd_trainer.tune import memory
from hvd_trainer.tune.memory import MemoryProbe, OnGpu, TrainingAttempt, first_samples, largest_micro_batch, next_size
from hvd_trainer.tune.memory_child import FAILED, FITS, TOO_LARGE, Child, Outcome, is_out_of_memory
from tests.fake_comm import run_threads
from tests.properties import given, st
from tests.tune import attempts


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(0, 5000), st.sampled_from([0.0, 0.05, 0.5]))
def test_the_search_finds_the_border(largest, smallest, border, tolerance):
    largest = max(largest, smallest)
    good, bad, tried = 0, None, []
    while (size := next_size(good, bad, smallest, largest, tolerance)) is not None:
        assert smallest <= size <= largest and size not in tried
        tried.append(size)
        if size <= border:
            good = size
        else:
            bad = size
    assert len(tried) <= math.log2(largest / smallest + 1) + math.log2(largest + 1) + 4
    if border < smallest:
        assert (good, tried) == (0, [smallest])
    elif border >= largest:
        assert good == largest
    else:
        assert good <= border < bad and bad - good <= max(1, good * tolerance)


class Fake:
    """A runner without a process: what fits, by rank."""

    def __init__(self, largest, breaks_at=None):
        self.largest, self.breaks_at, self.tried, self.stopped = largest, breaks_at, [], False

    def start(self):
        return None

    def available(self):
        return 1000.0

    def run(self, size, limit):
        self.tried.append((size, limit))
        if size == self.breaks_at:
            raise ValueError("a bug")
        return Outcome(FITS, 10 * size) if size <= self.largest else Outcome(TOO_LARGE, text="no room")

    def stop(self):
        self.stopped = True


def probe(monkeypatch, runners, **options):
    monkeypatch.setattr(memory, "OnCpu", lambda attempt, timeout_s: attempt)
    return run_threads(len(runners), lambda comm: largest_micro_batch(runners[comm.rank], comm, **{"largest": 64, "tolerance": 0, **options}), catch=True)


def test_the_smallest_rank_decides_and_all_try_the_same(monkeypatch):
    runners = [Fake(40), Fake(21), Fake(64)]
    found = probe(monkeypatch, runners)
    assert found[0] == found[1] == found[2]
    assert (found[0].micro_batch, found[0].too_large, found[0].reason) == (21, 22, "rank 1: no room")
    assert found[0].limit_bytes == int(0.8 * 1000 / 3) and found[0].peaks[21] == 210  # three ranks share the node
    assert runners[0].tried == runners[1].tried == runners[2].tried and all(runner.stopped for runner in runners)


def test_everything_fits_or_nothing_does(monkeypatch):
    assert probe(monkeypatch, [Fake(64)], limit_bytes=7) == [MemoryProbe(64, None, 7, {size: 10 * size for size in (1, 2, 4, 8, 16, 32, 64)})]
    errors = probe(monkeypatch, [Fake(64), Fake(1)], smallest=2)
    assert all(isinstance(error, ConfigError) and "a micro-batch of 2 does not fit" in str(error) and "rank 1" in str(error) for error in errors)


def test_an_error_on_one_rank_is_one_on_all(monkeypatch):
    runners = [Fake(64), Fake(64, breaks_at=8)]
    errors = probe(monkeypatch, runners)
    assert all(isinstance(error, HvdTrainerError) and "a micro-batch of 8: rank 1 failed: ValueError: a bug" in str(error) for error in errors)
    assert all(runner.stopped for runner in runners)


@pytest.mark.parametrize("options", [{"largest": 0}, {"smallest": 65}, {"smallest": 0}, {"fraction": 0}, {"fraction": 1.5}, {"limit_bytes": 0}, {"tolerance": -1}], ids=str)
def test_options_that_cannot_be(options):
    with pytest.raises(ConfigError, match="largest_micro_batch"):
        largest_micro_batch(attempts.hold, SingleCommunicator(), **{"largest": 64, **options})


def test_a_process_that_runs_out_of_memory():
    """A limit of 50 MiB, one MiB a sample; a hundred times that would fit into the node. The same process goes on."""
    found = largest_micro_batch(attempts.hold, SingleCommunicator(), largest=2048, smallest=16, limit_bytes=50 * 2**20, tolerance=0.1)
    assert 40 <= found.micro_batch <= 50 < found.too_large <= 55
    assert "allocate" in found.reason or "Memory" in found.reason
    assert 28 <= found.peaks[32] / 2**20 <= 40


def test_a_process_that_is_killed():
    found = largest_micro_batch(attempts.killed_above_ten, SingleCommunicator(), largest=11, smallest=10, tolerance=0)
    assert (found.micro_batch, found.too_large, found.reason) == (10, 11, "rank 0: ended by SIGKILL")


def test_an_attempt_that_cannot_be_sent():
    with pytest.raises(ConfigError, match="pickle can copy"):
        Child(lambda micro_batch: None, timeout_s=60).start()


@pytest.mark.slow
def test_a_process_that_fails_leaves_or_does_not_answer():
    outcome = Child(attempts.broken, timeout_s=60).run(1, None)
    assert outcome.kind == FAILED and "a bug in the model" in outcome.text
    assert Child(attempts.leave, 60).run(1, None) == Outcome(FAILED, text="ended with exit code 3")
    with pytest.raises(ConfigError, match="no answer within 0.001 s"):
        Child(attempts.hold, 1e-3).start()


def test_training_attempt_holds_what_training_holds():
    """A model of 1 MiB whose sample keeps 3 MiB for backward: parameters, gradients, momentum and buckets are 4 of it."""
    attempt = TrainingAttempt(attempts.Wide, attempts.make_batch, attempts.loss_fn)
    assert pickle.loads(pickle.dumps(attempt)) == attempt
    sizes = []

    def watch(tensor):
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(watch, lambda tensor: tensor):
        attempt(4)
    assert max(sizes) == 4 * attempts.MIB
    for options in ({"optimizer": "lamb", "settings": {"lr": 0.0}}, {"autocast": "bfloat16"}):
        TrainingAttempt(attempts.Wide, attempts.make_batch, lambda m, b: m(b).mean(), **options)(2)


def test_first_samples_goes_round():
    data = [(torch.tensor(float(i)), i) for i in range(3)]
    x, y = first_samples(data, 5)
    assert (x.tolist(), y.tolist()) == ([0, 1, 2, 0, 1], [0, 1, 2, 0, 1])


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory of that year"), False),
    ],
    ids=str,
)
def test_which_errors_mean_memory(error, is_memory):
    assert is_out_of_memory(error) == is_memory


class FakeCuda:
    """What `OnGpu` asks of torch.cuda: 1000 bytes free, of which an attempt takes 100 a sample."""

    def __init__(self, monkeypatch):
        self.free, self.reserved, self.peak, self.emptied = 1000, 50, 50, 0
        for name in ("mem_get_info", "memory_reserved", "reset_peak_memory_stats", "max_memory_reserved", "synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def mem_get_info(self, device):
        return self.free, 2 * self.free

    def memory_reserved(self, device):
        return self.reserved

    def reset_peak_memory_stats(self, device):
        self.peak = self.reserved

    def max_memory_reserved(self, device):
        return self.peak

    def synchronize(self, device):
        pass

    def empty_cache(self):
        self.emptied += 1

    def attempt(self, micro_batch):
        self.peak = self.reserved + 100 * micro_batch
        if self.peak > self.free:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        if micro_batch == 7:
            raise ValueError("a bug")


def test_on_a_gpu_it_is_an_exception_and_a_limit(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    runner = OnGpu(cuda.attempt, torch.device("cuda", 0))
    assert runner.start().kind == FITS and runner.available() == 1000
    assert runner.run(8, 800) == Outcome(FITS, 800)
    over = runner.run(9, 800)
    assert (over.kind, over.peak_bytes) == (TOO_LARGE, 900) and "more than the" in over.text
    assert runner.run(10, 800).text == "OutOfMemoryError: CUDA out of memory."
    with pytest.raises(ValueError, match="a bug"):
        runner.run(7, 800)
    assert cuda.emptied >= 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_real_gpu():
    comm = ht.init(engine="single")
    attempt = TrainingAttempt(attempts.Wide, attempts.make_batch, attempts.loss_fn, device=str(comm.device))
    found = largest_micro_batch(attempt, comm, largest=4096, limit_bytes=2**30)
    assert 150 < found.micro_batch < 400 and found.too_large is not None
    comm.close()
