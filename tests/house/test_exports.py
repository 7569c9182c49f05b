"""`ht.*` is what was promised: sorted, complete, each name resolves, and nothing is public by accident."""

import pytest

import hvd_trainer as ht

# A name appears here, in __init__ and in the docs together.
PROMISED = {
    "AdaScale", "AdamSde", "BatchPlan", "Callback", "Checkpoint", "DistributedOptimizer", "EMA", "EarlyStop", "Evaluate",
    "GradScaler", "JsonLines", "LAMB", "LARS", "LearningRate", "Loader", "NoiseRule", "NoiseScale", "Progress",
    "ScalingRule", "StreamLoader", "SyncBatchNorm", "TensorBoard", "Trainer", "Unfreeze", "Warmup", "Weighted", "__version__", "broadcast_model", "errors",
    "evaluate", "init", "make_optimizer", "noise_scale", "replica_check", "run", "scale_lr", "schedules",
}  # fmt: skip


def test_all_is_sorted_and_what_was_promised():
    assert list(ht.__all__) == sorted(set(ht.__all__))
    assert set(ht.__all__) == PROMISED


def test_every_name_resolves_and_is_found_where_it_says():
    for name in ht.__all__:
        value = getattr(ht, name)
        if name != "__version__":
            assert value.__name__.rpartition(".")[2] == name
    assert dir(ht) == list(ht.__all__)


def test_schedules_are_public_functions():
    wanted = {"constant", "cosine", "linear", "multistep", "polynomial", "warmup_lr", "TorchSchedule", "Timeline"}
    assert not {name for name in wanted if not callable(getattr(ht.schedules, name, None))}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Optimiser"):
        getattr(ht, "Optimiser")  # noqa: B009 - the plain form is a statement without effect


def test_errors_drawn_and_errors_there_are_the_same():
    found = vars(ht.errors).items()
    classes = {name for name, value in found if isinstance(value, type) and issubclass(value, Exception)}
    for name in classes:
        assert name in ht.errors.__doc__
    assert all(issubclass(getattr(ht.errors, name), ht.errors.HvdTrainerError) for name in classes)
