"""A checkpoint of something else is refused, with the difference."""

from fractions import Fraction

import pytest
import torch

from hvd_trainer.checkpoint.recipe import check_resume, describe_model, describe_recipe
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.data.loader import Loader
from hvd_trainer.errors import CheckpointError
from hvd_trainer.plan import BatchPlan


def make_loader(num_samples=20, global_batch=8, reference_batch=4, **options):
    return Loader(list(range(num_samples)), BatchPlan(global_batch, 1, reference_batch), SingleCommunicator(), **options)


EXTRAS = {"optimizer": "SGD", "schedule": "StepLR"}


def manifest(model, loader):
    return {"model": describe_model(model), "recipe": {**describe_recipe(loader, loader.plan.reference), **EXTRAS}}


def test_another_optimizer():
    model = torch.nn.Linear(3, 2)
    with pytest.raises(CheckpointError, match="optimizer = SGD, this run has AdamW"):
        check_resume(manifest(model, make_loader()), model, make_loader(), {**EXTRAS, "optimizer": "AdamW"}, "x")


def test_the_same_again():
    model, loader = torch.nn.Linear(3, 2), make_loader()
    assert check_resume(manifest(model, loader), torch.nn.Linear(3, 2), make_loader(), EXTRAS, "x") == 4
    assert check_resume(manifest(model, loader), model, make_loader(reference_batch=None), EXTRAS, "x") == 4
    assert check_resume(manifest(model, loader), model, make_loader(reference_batch=Fraction(4)), EXTRAS, "x") == 4


def test_a_compiled_model_is_the_plain_one():
    plain, compiled = torch.nn.Linear(3, 2), torch.compile(torch.nn.Linear(3, 2), backend="eager")
    saved = manifest(plain, make_loader())
    assert manifest(compiled, make_loader()) == saved
    older = {**saved, "model": [f"_orig_mod.{line}" for line in saved["model"]]}
    for model in (plain, compiled):
        assert check_resume(saved, model, make_loader(), EXTRAS, "x") == check_resume(older, model, make_loader(), EXTRAS, "x") == 4


def test_fractional_reference():
    loader = make_loader(global_batch=8, reference_batch=Fraction(8, 3))
    assert check_resume(manifest(torch.nn.Linear(1, 1), loader), torch.nn.Linear(1, 1), make_loader(reference_batch=None), EXTRAS, "x") == Fraction(8, 3)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (torch.nn.Linear(3, 5), r"'weight \[2, 3\] float32' there, 'weight \[5, 3\] float32' here"),
        (torch.nn.Linear(3, 2, dtype=torch.float64), "float64"),
        (torch.nn.Linear(3, 2, bias=False), "2 tensors there, 1 here"),
        (torch.nn.Sequential(torch.nn.Linear(3, 2)), r"'0.weight \[2, 3\] float32' here"),
    ],
)
def test_another_model(model, words):
    with pytest.raises(CheckpointError, match=f"runs/a belongs to another model: .*{words}"):
        check_resume(manifest(torch.nn.Linear(3, 2), make_loader()), model, make_loader(), EXTRAS, "runs/a")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_samples": 21}, "num_samples = 20, this run has 21"),
        ({"global_batch": 4}, "global_batch = 8, this run has 4"),
        ({"seed": 1}, "seed = 0, this run has 1"),
        ({"shuffle": False}, "shuffle = True, this run has False"),
        ({"drop_last": True}, "drop_last = False, this run has True"),
        ({"reference_batch": 8}, "reference batch 4, this run asks for 8: the learning rate would jump"),
    ],
)
def test_another_recipe(options, words):
    model = torch.nn.Linear(3, 2)
    with pytest.raises(CheckpointError, match=words):
        check_resume(manifest(model, make_loader()), model, make_loader(**options), EXTRAS, "runs/a")


def test_another_recipe_says_both_ways_on():
    model = torch.nn.Linear(3, 2)
    with pytest.raises(CheckpointError) as caught:
        check_resume(manifest(model, make_loader()), model, make_loader(global_batch=4), EXTRAS, "runs/a/step-7")
    assert caught.value.fix == "global_batch = 8 to go on; to start anew, another folder than runs/a for ht.Checkpoint, with --set where it is a field of the config"


def test_micro_batches_may_change():
    model = torch.nn.Linear(3, 2)
    other = Loader(list(range(20)), BatchPlan(8, 1, 4, micro_batch=2), SingleCommunicator())
    check_resume(manifest(model, make_loader()), model, other, EXTRAS, "runs/a")
