"""What the ways of reducing owe apart from the sums themselves, which test_distributed checks for all of them."""

import pytest
import torch

from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError, NonFiniteError
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads


def sgd(*params):
    return torch.optim.SGD(list(params), lr=1.0)


def gradients(comm, values, *, dtype=torch.float32, plain=False, **options):
    """The averaged gradient where rank r's own is values[r] for each element."""
    w = torch.nn.Parameter(torch.zeros(5, dtype=dtype))
    opt = DistributedOptimizer(sgd(w), comm, lr_scaling="none", **options)
    loss = (w * torch.as_tensor(values[comm.rank], dtype=dtype)).sum()
    if plain:
        loss.backward()
    else:
        opt.backward(Weighted(loss, 1))
    opt.synchronize()
    return w.grad


@pytest.mark.parametrize("way", ["messages", "shared"])
@pytest.mark.parametrize("plain", [True, False])
def test_a_mean_that_fits_into_16_bits_is_found_though_the_sum_does_not(way, plain):
    """40,000 + 40,000 averaged in float16 is 40,000 (issue 3)."""

    def rank_main(comm):
        return gradients(comm, [40_000.0] * 2, dtype=torch.float16, plain=plain, reduce_through=way).tolist()

    assert run_threads(2, rank_main) == [[40_000.0] * 5] * 2


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(("compression", "digits"), [("bf16", 8), ("fp16", 11)])
def test_compressed_messages_lose_what_their_digits_say(compression, digits, plain):
    values = [torch.randn(5, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]

    def rank_main(comm):
        return gradients(comm, values, plain=plain, compression=compression, reduce_through="messages")

    found, mean = run_threads(3, rank_main), torch.stack(values).mean(0)
    assert all(torch.equal(each, found[0]) for each in found)
    assert not torch.equal(found[0], mean)
    # Each rank rounds once, and the sum is rounded: half a unit of the last digit of the largest part, each.
    largest = torch.stack(values).abs().max()
    assert (found[0] - mean).abs().max() <= 2 * largest * 2.0**-digits


def test_nothing_is_rounded_in_shared_memory():
    values = [torch.full((5,), 1 + 2.0**-12), torch.full((5,), 1.0)]

    def rank_main(comm):
        return gradients(comm, values, compression="bf16", reduce_through="shared")

    assert all(torch.equal(each, torch.full((5,), 1 + 2.0**-13)) for each in run_threads(2, rank_main))


@pytest.mark.parametrize(("hosts", "way"), [("aa", "messages"), ("aab", "shared")])
def test_what_makes_the_mean_is_not_rounded_to_16_bits(hosts, way):
    """Each gradient and their sum are powers of two; only the mean is not."""

    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(5))
        opt = DistributedOptimizer(sgd(w), comm, lr_scaling="none", compression="bf16", reduce_through=way)
        weight = 3 if comm.size == 2 else (3, 6, 3)[comm.rank]
        for _ in range(2):  # after the first step losses are divided by a nominal weight
            opt.zero_grad()
            opt.backward(Weighted(w.sum() * weight / 3, weight))
            opt.synchronize()
            opt.step()
        return w.grad

    for found in run_threads(len(hosts), rank_main, hosts=hosts):
        assert torch.equal(found, torch.full((5,), 1.0) / 3)


@pytest.mark.parametrize(("hosts", "way", "text"), [("aa", "messages", "messages in fp16"), ("aab", "shared", "shared memory of each node and fp16 messages")])
def test_what_does_not_fit_into_fp16_is_said_and_changes_nothing(hosts, way, text):
    def rank_main(comm):
        with pytest.raises(NonFiniteError, match=rf"does not fit into what travels \({text}") as caught:
            gradients(comm, [1e6] * 3, plain=True, compression="fp16", reduce_through=way)
        return "bf16" in str(caught.value)

    assert all(run_threads(len(hosts), rank_main, hosts=hosts))


@pytest.mark.parametrize("options", [{"compression": "int8"}, {"reduce_through": "pigeons"}, {"update_by": "magic"}])
def test_unknown_options(options):
    with pytest.raises(ConfigError, match="allowed"):
        DistributedOptimizer(sgd(torch.nn.Parameter(torch.zeros(1))), SingleCommunicator(), **options)


def test_shared_memory_that_cannot_be_had_is_refused_and_auto_takes_messages():
    with pytest.raises(ConfigError, match='reduce_through="shared", but one rank'):
        DistributedOptimizer(sgd(torch.nn.Parameter(torch.zeros(1))), SingleCommunicator(), reduce_through="shared")
    opt = DistributedOptimizer(sgd(torch.nn.Parameter(torch.zeros(1))), SingleCommunicator())
    assert opt.state_dict()["hvd_trainer"]["reduce_through"] == "messages"


def test_no_room_for_shared_memory_falls_back_on_all_ranks(monkeypatch):
    monkeypatch.setattr("hvd_trainer.comm.node_memory.free_bytes", lambda: 100)
    monkeypatch.setattr("hvd_trainer.optim.choose_way.AUTO_ENGINES", {"threads"})

    def rank_main(comm):
        opt = DistributedOptimizer(sgd(torch.nn.Parameter(torch.zeros(9))), comm)
        return opt.describe_reduction()

    assert all("messages (0 MiB do not fit" in text for text in run_threads(2, rank_main))


@pytest.mark.parametrize(("before", "after"), [("messages", "shared"), ("shared", "messages")])
def test_a_resumed_run_sums_as_before(before, after, monkeypatch):
    """Ways round differently with more than two ranks: the checkpoint says which it was."""
    saved = {}

    def save(comm):
        opt = DistributedOptimizer(sgd(torch.nn.Parameter(torch.zeros(9))), comm, reduce_through=before)
        saved[comm.rank] = opt.state_dict()

    run_threads(2, save)
    if after == "shared":
        monkeypatch.setattr("hvd_trainer.optim.choose_way.AUTO_ENGINES", {"threads"})

    def load(comm):
        w = torch.nn.Parameter(torch.zeros(9))
        opt = DistributedOptimizer(sgd(w), comm)
        first = opt.state_dict()["hvd_trainer"]["reduce_through"]
        opt.load_state_dict(saved[comm.rank])
        opt.backward(Weighted((w * (1.0 + comm.rank)).sum(), 1))
        opt.step()
        return first, opt.state_dict()["hvd_trainer"]["reduce_through"], w.tolist()

    assert run_threads(2, load) == [(after, before, [-3.0] * 9)] * 2
