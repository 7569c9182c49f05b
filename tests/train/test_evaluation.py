"""Every sample once, whatever the number of ranks."""

import math

import numpy as np
import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import CollectiveError, ConfigError, DataError
from hvd_trainer.train.metrics import reduce_sums
from tests.fake_comm import run_threads
from tests.properties import given, settings, st

IDENTITY = torch.nn.Identity()


def value(model, x):
    return {"mean": ht.Weighted(x.double().sum(), len(x)), "largest": ht.Weighted(float((x >= 7).sum()), len(x))}


@given(st.integers(1, 4), st.integers(1, 25), st.integers(1, 9))
@settings(max_examples=30)
def test_exact_on_any_number_of_ranks(num_ranks, num_samples, batch_size):
    data = [float(i) for i in range(num_samples)]
    found = run_threads(num_ranks, lambda comm: ht.evaluate(IDENTITY, data, value, comm, batch_size=batch_size))
    assert found == [found[0]] * num_ranks
    assert found[0] == pytest.approx({"mean": np.mean(data), "largest": sum(x >= 7 for x in data) / num_samples})
    assert list(found[0]) == ["mean", "largest"]


def test_21_images_on_2_ranks_are_21():
    """With a padding sampler 22 were counted (rf-detr#1507)."""
    seen = []

    def metrics(model, x):
        seen.extend(x.tolist())
        return {"n": ht.Weighted(len(x), 1)}

    run_threads(2, lambda comm: ht.evaluate(IDENTITY, list(range(21)), metrics, comm, batch_size=4))
    assert sorted(seen) == list(range(21))


def test_a_mapping_of_functions_and_numpy_numbers():
    metrics = {"a": lambda model, x: ht.Weighted(np.float32(x.sum().item()), len(x)), "b": lambda model, x: ht.Weighted((x > 1).sum(), x.numel())}
    assert ht.evaluate(IDENTITY, [1, 2, 3], metrics, SingleCommunicator(), batch_size=2) == {"a": 2.0, "b": pytest.approx(2 / 3)}


def test_weights_may_be_zero():
    found = ht.evaluate(IDENTITY, [1.0], lambda model, x: {"none": ht.Weighted(0.0, 0)}, SingleCommunicator())
    assert math.isnan(found["none"])


def test_metrics_that_only_some_ranks_have():
    """A class that occurs in one share only."""

    def metrics(model, x):
        return {"few": ht.Weighted(x.sum(), len(x))} if x.max() > 4 else {"many": ht.Weighted(x.sum(), len(x))}

    found = run_threads(3, lambda comm: ht.evaluate(IDENTITY, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], metrics, comm))
    assert found == [{"many": 2.5, "few": 5.5}] * 3


def test_modes_are_put_back_module_by_module():
    """A user who froze the normalisation by bn.eval() must not find it thawed."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1), torch.nn.Dropout())
    model[1].eval()

    def metrics(model, x):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        return {"x": ht.Weighted(model(x[:, None].float()).sum(), len(x))}

    ht.evaluate(model, [1.0, 2.0], metrics, SingleCommunicator())
    assert [module.training for module in model.modules()] == [True, True, False, True]

    def broken(model, x):
        raise ValueError

    with pytest.raises(ValueError):
        ht.evaluate(model, [1.0, 2.0], broken, SingleCommunicator())
    assert [module.training for module in model.modules()] == [True, True, False, True]


def test_collate():
    found = ht.evaluate(IDENTITY, [1, 2], lambda model, x: {"n": ht.Weighted(x["n"], 1)}, SingleCommunicator(), collate_fn=lambda s: {"n": len(s)})
    assert found == {"n": 2.0}


def test_large_counts_are_exact():
    comm = SingleCommunicator()
    assert reduce_sums({"n": ht.Weighted(2**53 - 1, 1)}, comm) == {"n": float(2**53 - 1)}


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_batch_sizes_that_cannot_be(value):
    with pytest.raises(ConfigError, match="batch_size="):
        ht.evaluate(IDENTITY, [1], lambda model, x: {}, SingleCommunicator(), batch_size=value)


def test_ranks_with_data_sets_of_different_lengths():
    """Their shares would overlap or leave samples out."""

    def rank_main(comm):
        with pytest.raises(CollectiveError, match="length of the evaluation data set"):
            ht.evaluate(IDENTITY, list(range(5 + comm.rank)), value, comm)
        with pytest.raises(CollectiveError, match="length of the evaluation data set"):
            ht.evaluate(IDENTITY, list(range(comm.rank)), value, comm)

    run_threads(2, rank_main)


def test_what_cannot_be_evaluated():
    comm = SingleCommunicator()
    with pytest.raises(DataError, match="0 samples"):
        ht.evaluate(IDENTITY, [], value, comm)
    with pytest.raises(ConfigError, match="metric 'x' is a float"):
        ht.evaluate(IDENTITY, [1], lambda model, x: {"x": 0.5}, comm)
    with pytest.raises(ConfigError, match="metric 'x' is a Tensor"):
        ht.evaluate(IDENTITY, [1.0], lambda model, x: {"x": x.mean()}, comm)
    with pytest.raises(ConfigError, match="returned a Weighted"):
        ht.evaluate(IDENTITY, [1], lambda model, x: ht.Weighted(1, 1), comm)
