"""One step as a function, and moving nested data."""

from collections import OrderedDict, defaultdict, namedtuple
from types import MappingProxyType

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.data.device import to_device
from hvd_trainer.errors import LossError
from hvd_trainer.train.step import train_step
from tests.fake_comm import run_threads
from tests.train.small import loss_fn, make_loader, make_model

META = torch.device("meta")
Pair = namedtuple("Pair", "x y")


def test_to_device():
    t = torch.ones(2)
    data = {"a": [t, (t, 3)], "b": Pair(t, "text"), "c": None}
    moved = to_device(data, META)
    assert moved["a"][0].is_meta and moved["a"][1][0].is_meta and moved["a"][1][1] == 3
    assert isinstance(moved["b"], Pair) and moved["b"].x.is_meta and moved["b"].y == "text"
    assert moved["c"] is None
    assert isinstance(to_device([t], META), list) and isinstance(to_device((t,), META), tuple)
    assert to_device(t, torch.device("cpu")) is t
    assert to_device(OrderedDict(a=t), META)["a"].is_meta


def test_an_object_with_to_of_its_own():
    """A batch class of the user's (PyG's Data, transformers' BatchEncoding) knows how to move."""

    class Batch:
        def __init__(self, x):
            self.x = x

        def to(self, device, non_blocking=False):
            return Batch(self.x.to(device))

    assert to_device([Batch(torch.ones(1))], META)[0].x.is_meta


class Samples(list):
    def __init__(self, lengths, values):
        super().__init__(values)
        self.lengths = lengths


class Features(dict):
    """Attributes and items are the same, as in many configs and batches."""

    __getattr__ = dict.__getitem__


def test_containers_keep_their_class():
    t = torch.ones(2)
    Mail = namedtuple("Mail", "to text")
    mail = to_device(Mail(t, "hello"), META)
    assert isinstance(mail, Mail) and mail.to.is_meta and mail.text == "hello"
    samples = Samples([2], [t])
    moved = to_device(samples, META)
    assert isinstance(moved, Samples) and moved.lengths == [2] and moved[0].is_meta and not samples[0].is_meta
    features = to_device({"x": Features(x=t)}, META)["x"]
    assert isinstance(features, Features) and features.x.is_meta
    assert to_device(defaultdict(list, a=t), META)["b"] == []
    assert to_device(MappingProxyType({"a": t}), META)["a"].is_meta
    packed = to_device(torch.nn.utils.rnn.pack_sequence([t]), META)
    assert isinstance(packed, torch.nn.utils.rnn.PackedSequence) and packed.data.is_meta


@pytest.mark.parametrize("forgotten", ["all", "one of two", "on one rank"])
def test_a_forgotten_return(forgotten):
    """`opt.backward(None)` means "no data"; a step must not leave samples out without a word."""

    def rank_main(comm):
        model = make_model()
        opt = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), comm)
        calls = []

        def broken(model, batch):
            calls.append(1)
            loss = loss_fn(model, batch)
            if {"all": False, "one of two": len(calls) == 1, "on one rank": comm.rank == 0}[forgotten]:
                return loss

        train_step(model, broken, next(iter(make_loader(comm, micro_batch=1).epoch(0))), opt)

    found = run_threads(2, rank_main, catch=True)
    assert isinstance(found[1], LossError)
    assert "the loss is a NoneType" in str(found[1]) and "forgotten return" in str(found[1])


@pytest.mark.parametrize("micro_batch", [None, 1])
def test_loss_is_that_of_the_whole_batch_before_the_update(micro_batch):
    """It does not depend on the accumulation (transformers#34263)."""

    def rank_main(comm):
        model = make_model()
        opt = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), comm, lr_scaling="none")
        loader = make_loader(comm, micro_batch=micro_batch, shuffle=False)
        losses = [train_step(model, loss_fn, batch, opt) for batch in loader.epoch(0)]
        assert all(p.grad is None for p in model.parameters())
        return [loss.mean for loss in losses], [loss.weight for loss in losses]

    model = make_model()
    x, y = make_loader(SingleCommunicator(), shuffle=False).dataset.tensors
    first = (model(x[:4]) - y[:4]).square().mean().item()
    for losses, weights in run_threads(3, rank_main):
        assert losses[0] == pytest.approx(first, rel=1e-12)
        assert weights == [4, 4, 4, 2]
