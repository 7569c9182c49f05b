"""Evaluation with worker processes: the same numbers, and the callback keeps its workers."""

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError
from tests.data.augmented import Augmented
from tests.train.small import make_loader, make_trainer


def drawn(model, data):
    return {"drawn": ht.Weighted(data[:, 1:].sum(), len(data))}


def test_the_same_numbers_from_kept_workers():
    callback = ht.Evaluate(Augmented(), drawn, batch_size=7, num_workers=1)
    here = ht.Evaluate(Augmented(), lambda model, data: {"here": drawn(model, data)["drawn"]}, batch_size=7)
    trainer = make_trainer(callbacks=[callback, here])
    rows = trainer.fit(make_loader(trainer.comm), epochs=1)
    processes = list(callback._batches._workers._loader._iterator._workers)
    rows = trainer.fit(trainer.loader, epochs=2)
    assert processes == callback._batches._workers._loader._iterator._workers
    assert all(row["drawn"] == row["here"] == rows[0]["here"] for row in rows)


def test_wrong_number():
    with pytest.raises(ConfigError, match=r"evaluate\(num_workers=-1\)"):
        ht.evaluate(torch.nn.Identity(), Augmented(), drawn, SingleCommunicator(), num_workers=-1)
