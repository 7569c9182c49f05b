"""The Trainer on streams: the model of a Loader on the same batches, epochs of unknown length, resume."""

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import CheckpointError, ConfigError
from tests.data.test_stream import Saved
from tests.fake_comm import run_threads
from tests.train.small import (
    GLOBAL_BATCH,
    NUM_SAMPLES,
    Watch,
    make_data,
    make_loader,
    make_model,
    make_trainer,
    parameters,
)


def make_stream(comm, sharded=False, data=None, **options):
    data = make_data() if data is None else data
    samples = [data[i] for i in (range(len(data)) if not sharded else range(comm.rank, len(data), comm.size))]
    return ht.StreamLoader(samples, ht.BatchPlan(GLOBAL_BATCH, comm.size, 2), comm, sharded=sharded, **options)


@pytest.mark.parametrize("options", [{}, {"steps_per_epoch": 4}, {"sharded": True}], ids=str)
def test_same_answer_as_a_loader(options):
    """With shards of which each rank has every second sample the global batches are the same, in another order."""

    def rank_main(comm):
        watch = Watch()
        trainer = make_trainer(comm, [watch, ht.Progress()])
        history = trainer.fit(make_stream(comm, **options), epochs=2)
        return parameters(trainer), [(row["epoch"], row["step"], row["loss"]) for row in history], watch.hooks

    alone = make_trainer()
    rows = [(row["epoch"], row["step"], pytest.approx(row["loss"])) for row in alone.fit(make_loader(alone.comm, shuffle=False), epochs=2)]
    watch = Watch()
    make_trainer(callbacks=[watch]).fit(make_loader(alone.comm, shuffle=False), epochs=2)
    for found, history, hooks in run_threads(2, rank_main):
        torch.testing.assert_close(found, parameters(alone), rtol=1e-12, atol=1e-12)
        assert history == rows
        assert hooks == watch.hooks


def test_a_rank_that_runs_out_first():
    def rank_main(comm):
        data = make_data()
        mine = [data[i] for i in (range(2), range(2, NUM_SAMPLES))[comm.rank]]
        trainer = make_trainer(comm)
        history = trainer.fit(ht.StreamLoader(mine, ht.BatchPlan(4, 2, 2), comm, sharded=True), epochs=1)
        return parameters(trainer), history[0]["step"]

    (first, steps), (second, _) = run_threads(2, rank_main)
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)  # global batch 4, reference 2
    x, y = make_data().tensors
    batches = [[0, 1, 2, 3], *([i, i + 1] for i in range(4, NUM_SAMPLES, 2))]
    for batch in batches:
        sgd.zero_grad()
        (model(x[batch]) - y[batch]).square().sum().div(len(batch)).backward()
        sgd.step()
    assert steps == len(batches)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, torch.cat([p.detach().flatten() for p in model.parameters()]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("steps_per_epoch", [None, 3])
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("stop", [1, 3, 4, 6])
def test_resume_equals_straight(stop, stateful, steps_per_epoch, tmp_path):
    data = make_data()

    def make_samples(comm):
        if not stateful:
            return make_stream(comm, steps_per_epoch=steps_per_epoch)
        options = {"steps_per_epoch": steps_per_epoch, "collate_fn": lambda indices: [torch.stack(part) for part in zip(*(data[i] for i in indices))]}
        return ht.StreamLoader(Saved(0, NUM_SAMPLES), ht.BatchPlan(GLOBAL_BATCH, comm.size, 2), comm, **options)

    def fit(steps, folder):
        trainer = make_trainer(callbacks=[ht.Checkpoint(folder)])
        loader = make_samples(trainer.comm)
        history = trainer.fit(loader, steps=steps, resume="auto")
        return trainer, loader, [(row["epoch"], row["step"], row["loss"]) for row in history]

    straight, _, rows = fit(9, tmp_path / "straight")
    fit(stop, tmp_path / "stopped")
    resumed, loader, again = fit(9, tmp_path / "stopped")
    assert torch.equal(parameters(resumed), parameters(straight))
    assert again == rows
    if stateful and steps_per_epoch:
        assert loader.stream.asked < 9 * GLOBAL_BATCH - stop * 2  # nothing was drawn again


def test_a_second_fit_goes_on_without_a_gap():
    straight, twice = make_trainer(), make_trainer()
    straight.fit(make_stream(straight.comm, steps_per_epoch=3), steps=8)
    stream = make_stream(twice.comm, steps_per_epoch=3)
    for steps in (2, 3, 8):
        twice.fit(stream, steps=steps)
    assert torch.equal(parameters(straight), parameters(twice))


def test_what_needs_a_length_says_so(tmp_path):
    def trainer_of(**options):
        return make_trainer(SingleCommunicator(), **options)

    with pytest.raises(ConfigError, match=r"(?s)schedule and a stream.*fit\(steps=...\), or StreamLoader\(steps_per_epoch=...\)"):
        trainer = trainer_of(schedule=ht.schedules.cosine())
        trainer.fit(make_stream(trainer.comm), epochs=2)
    for options in ({"schedule": ht.schedules.cosine(total_epochs=3)}, {"callbacks": [ht.Warmup(epochs=1)]}):
        with pytest.raises(ConfigError, match="counts in epochs"):
            trainer = trainer_of(**options)
            trainer.fit(make_stream(trainer.comm), steps=5)
    trainer = trainer_of(schedule=ht.schedules.cosine(), callbacks=[ht.Warmup(steps=2)])
    assert trainer.fit(make_stream(trainer.comm), steps=6)[-1]["step"] == 6


def test_resume_on_another_number_of_ranks(tmp_path):
    """The same stream for all: any number. Shards belong to ranks: refused."""

    def rank_main(folder, sharded):
        def fit(comm):
            trainer = make_trainer(comm, [ht.Checkpoint(folder)])
            trainer.fit(make_stream(comm, sharded), steps=3 if comm.size == 2 else 6, resume="auto")
            return parameters(trainer)

        return fit

    run_threads(2, rank_main(tmp_path / "same", False))
    straight = make_trainer()
    straight.fit(make_stream(straight.comm), steps=6)
    torch.testing.assert_close(rank_main(tmp_path / "same", False)(SingleCommunicator()), parameters(straight), rtol=1e-12, atol=1e-12)
    run_threads(2, rank_main(tmp_path / "shards", True))
    with pytest.raises(CheckpointError, match="stream in 2 shards"):
        rank_main(tmp_path / "shards", True)(SingleCommunicator())
