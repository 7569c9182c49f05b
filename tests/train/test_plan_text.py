"""The plan that is printed before the first step says what will happen."""

import pytest

import hvd_trainer as ht
from tests.fake_comm import run_threads
from tests.train.small import make_loader, make_trainer


def printed(capsys, size=1, callbacks=(), length=None, options=None, **loader):
    def rank_main(comm):
        make_trainer(comm, [make() for make in callbacks], **(options or {})).fit(make_loader(comm, **loader), **(length or {"epochs": 1}))

    run_threads(size, rank_main)
    out = capsys.readouterr().out
    assert out.count("plan  ") == 1  # rank 0 speaks
    return out[out.index("plan  ") :]


def test_all_of_it(capsys):
    text = printed(capsys, 3, [lambda: ht.Warmup(1.5)], {"epochs": 2}, micro_batch=1)
    for words in [
        "4 = 3 ranks x 2 (uneven: 2 to 1 a rank, weighted exactly); micro-batches: 2 x 1",
        "14 samples, 4 steps an epoch, last batch of 2 kept, weighted exactly",
        "0.1 for batch 2, peak 0.2 (linear: x 2)",
        "6 steps from 0.1 to 0.2",
        "8 steps = 2 epochs with SGD",
    ]:
        assert words in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"drop_last": True}, "last batch of 2 dropped"),
        ({"num_samples": 12}, "no smaller last batch"),
        ({"micro_batch": 3}, "micro-batches: 2 x 2"),
        ({"global_batch": 5, "micro_batch": 3}, "micro-batches: 1 x 3 + 1 x 2"),
        ({"options": {"lr_scaling": "none"}, "callbacks": [lambda: ht.Warmup(1)]}, "none needed"),
        ({"options": {"lr_scaling": "none"}, "callbacks": [lambda: ht.Warmup(1, start_factor=0.5)]}, "4 steps from 0.05 to 0.1"),
        ({"options": {"lr_scaling": 3}}, "peak 0.3 (fixed: x 3)"),
        ({"options": {"lr_scaling": "sqrt"}}, "sqrt: x 1.41421"),
        ({}, "warm-up       none"),
        ({"length": {"steps": 6}}, "6 steps = 1.5 epochs"),
        ({"length": {"steps": 1}}, "1 step = 0.25 epochs with"),
        ({}, "4 steps = 1 epoch with"),
        ({"reference_batch": None, "size": 3}, "0.1 for batch 1.33333, peak 0.3"),
    ],
    ids=lambda part: repr(part).split(" at ")[0],  # an address differs between the processes of `make test`
)
def test_parts(arguments, words, capsys):
    assert words in printed(capsys, **arguments)


def test_resumed(tmp_path, capsys):
    first = make_trainer(callbacks=[ht.Checkpoint(tmp_path)])
    first.fit(make_loader(first.comm), epochs=1)
    second = make_trainer(callbacks=[ht.Checkpoint(tmp_path)])
    second.fit(make_loader(second.comm), epochs=2, resume="auto")
    out = capsys.readouterr().out
    assert "8 steps = 2 epochs with SGD, from step 4" in out
    assert f"resumed from {tmp_path}/step-0000000004 at step 4" in out
