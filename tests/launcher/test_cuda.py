"""GPUs are built for when one whole toolkit fits torch; everything else is a CPU build with a reason."""

import json

import pytest

from hvd_trainer.launcher.horovod_build.cuda import find_cuda


@pytest.fixture
def toolkit(tmp_path):
    home = tmp_path / "cuda"
    for name in ("bin/nvcc", "include/cuda_runtime.h", "include/nccl.h", "lib64/libcudart.so"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    (home / "version.json").write_text(json.dumps({"cuda": {"name": "CUDA SDK", "version": "13.0.1"}}))
    return home


def test_a_whole_toolkit_is_used(toolkit):
    found = find_cuda("13.0", str(toolkit), "", "")
    assert found.gpu and found.home == str(toolkit) and found.version == "13.0"


def test_torch_without_cuda_never_looks(toolkit):
    assert not find_cuda("", str(toolkit), "", "").gpu


@pytest.mark.parametrize("part", ["bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart.so", "include/nccl.h"])
def test_half_a_toolkit_gives_a_sentence_that_names_the_part(toolkit, part):
    (toolkit / part).unlink()
    found = find_cuda("13.0", str(toolkit), "", "")
    if part == "include/nccl.h" and found.gpu:
        pytest.skip("this machine has a system-wide nccl.h")
    assert not found.gpu
    assert "built for CPUs" in found.reason and str(toolkit) in found.reason


def test_the_nccl_of_torch_serves(toolkit, tmp_path):
    (toolkit / "include/nccl.h").unlink()
    assert find_cuda("13.0", str(toolkit), "", str(tmp_path / "nccl")).gpu


def test_another_major_release_does_not_fit(toolkit):
    found = find_cuda("12.8", str(toolkit), "", "")
    assert not found.gpu and "CUDA 13.0" in found.reason and "12.8" in found.reason


def test_a_named_toolkit_that_does_not_exist_switches_gpus_off():
    assert not find_cuda("13.0", "/nowhere", "/usr/local/bin:/usr/bin", "").gpu
