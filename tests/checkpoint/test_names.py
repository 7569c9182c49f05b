"""A state_dict has the names of the plain model, and loads whatever is compiled."""

import pytest
import torch

from hvd_trainer.checkpoint.names import load_plain_state_dict, plain_name, plain_state_dict


class Versioned(torch.nn.Linear):
    """Renames a tensor of its first version, as torch's own modules do."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        if local_metadata.get("version", 1) < 2:
            state_dict[prefix + "weight"] = state_dict[prefix + "weight"] * 0
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def make(kind, fill):
    model = torch.nn.Sequential(Versioned(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1)))
    for tensor in model.state_dict().values():
        tensor.fill_(fill)
    if kind in ("part", "both"):
        model[0], model[1] = (torch.compile(model[at], backend="eager") for at in (0, 1))
    return torch.compile(model, backend="eager") if kind in ("whole", "both") else model


KINDS = ["plain", "whole", "part", "both"]


@pytest.mark.parametrize("saved", KINDS)
@pytest.mark.parametrize("loaded", KINDS)
def test_every_kind_loads_every_other(saved, loaded):
    state = plain_state_dict(make(saved, 3))
    assert list(state) == list(make("plain", 0).state_dict())
    assert state._metadata == make("plain", 0).state_dict()._metadata
    for given in (state, make(saved, 3).state_dict()):  # older releases saved the names as they were
        model = make(loaded, 0)
        load_plain_state_dict(model, given)
        assert all((tensor == 3).all() for tensor in model.state_dict().values())


def test_missing_and_foreign_tensors_are_still_refused():
    state = plain_state_dict(make("whole", 3))
    del state["0.bias"]
    with pytest.raises(RuntimeError, match="Missing(.|\n)*0.bias"):
        load_plain_state_dict(make("plain", 0), state)
    with pytest.raises(RuntimeError, match="Unexpected(.|\n)*other"):
        load_plain_state_dict(make("whole", 0), {**plain_state_dict(make("plain", 3)), "other": torch.ones(1)})


def test_names_that_only_look_alike():
    assert [plain_name(name) for name in ("my_orig_mod.w", "_orig_mods.w", "a._orig_mod_.w")] == ["my_orig_mod.w", "_orig_mods.w", "a._orig_mod_.w"]
