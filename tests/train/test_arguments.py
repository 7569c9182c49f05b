"""What a Trainer and fit() cannot take."""

import numpy as np
import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError
from tests.train.small import loss_fn, make_data, make_loader, make_model, make_trainer


@pytest.mark.parametrize("precision", ["fp32", torch.float32, "bfloat16", torch.bfloat16, torch.float16, "float16"], ids=str)
def test_names_of_precision(precision):
    assert make_trainer(precision=precision).fit(make_loader(SingleCommunicator()), steps=1) if "32" in str(precision) else make_trainer(precision=precision)
    for bad in (torch.float64, "half", 16, None):
        with pytest.raises(ConfigError, match="precision="):
            make_trainer(precision=bad)


def test_what_fit_cannot_take():
    comm = SingleCommunicator()
    for resume in (True, False, 3):
        with pytest.raises(ConfigError, match=f"fit\\(resume={resume}\\)(.|\n)*resume=\"auto\""):
            make_trainer(comm).fit(make_loader(comm), epochs=1, resume=resume)
    with pytest.raises(ConfigError, match=r"fit\(DataLoader\)(.|\n)*ht.Loader.from_dataloader"):
        make_trainer(comm).fit(torch.utils.data.DataLoader(make_data()), epochs=1)
    with pytest.raises(ConfigError, match=r"fit\(TensorDataset\)(.|\n)*ht.Loader\("):
        make_trainer(comm).fit(make_data(), epochs=1)


@pytest.mark.parametrize(
    "length", [{"epochs": torch.tensor(1.7)}, {"steps": np.float64(2.0)}, {"steps": np.True_}, {}, {"epochs": 1, "steps": 1}, {"epochs": 0}, {"steps": -1}, {"epochs": 1.5}, {"epochs": True}, {"steps": "3"}], ids=repr
)
def test_lengths_that_cannot_be(length):
    trainer = make_trainer()
    with pytest.raises(ConfigError, match="fit"):
        trainer.fit(make_loader(trainer.comm), **length)


def test_parts_that_cannot_be():
    comm, model = SingleCommunicator(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    good = {"comm": comm, "model": model, "optimizer": optimizer, "loss_fn": loss_fn}
    wrapped = ht.DistributedOptimizer(torch.optim.SGD(make_model().parameters(), lr=0.1), comm)
    for change, words in [
        ({"comm": None}, "comm="),
        ({"model": torch.nn.ReLU()}, "no parameters"),
        ({"model": make_model().to("meta")}, "on meta"),
        ({"optimizer": wrapped}, "not wrapped"),
        ({"optimizer": None}, "optimizer="),
        ({"loss_fn": "mse"}, "loss_fn="),
        ({"callbacks": [ht.Progress]}, "not the class"),
        ({"callbacks": ht.Progress()}, "a list of callbacks"),
        ({"callbacks": None}, "a list of callbacks"),
        ({"schedule": 0.1}, "schedule="),
        ({"lr_scaling": "double"}, "lr_scaling="),
    ]:
        with pytest.raises(ConfigError, match=words):
            ht.Trainer(**{**good, **change})
