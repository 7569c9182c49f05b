"""Facts are read from version texts of whatever tools lie on the path."""

import pytest

from hvd_trainer.launcher.horovod_build import facts
from hvd_trainer.launcher.horovod_build.settings import Settings, default_cache


def tool(folder, name, says="", code=0):
    """A fake program that prints `says`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {code}\n")
    file.chmod(0o755)
    return file


def test_tools_are_taken_from_the_path_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    first, second = tmp_path / "a", tmp_path / "b"
    tool(first, "mpicxx")
    tool(first, "mpirun", "mpirun (Open MPI) 5.0.11\n\nReport bugs")
    tool(first, "cmake", "cmake version 3.18.4")
    tool(first, "g++", "g++ (Debian) 12.2.0\nCopyright")
    tool(second, "mpirun", "HYDRA build details:\n    Version:     5.0.2")
    found = facts.gather(Settings(cache=tmp_path, path=f"{first}:{second}:/bin"))
    assert found.mpi == "Open MPI 5.0.11" and found.mpirun == str(first / "mpirun")
    assert found.cmake_version == (3, 18, 4)
    assert found.cxx_version.endswith("12.2.0")


def test_the_launcher_beside_the_named_compiler_wins(tmp_path):
    tool(tmp_path / "a", "mpirun", "mpirun (Open MPI) 4.1.4")
    tool(tmp_path / "b", "mpirun", "HYDRA build details:\n    Version:     5.0.2")
    named = str(tool(tmp_path / "b", "mpicxx"))
    found = facts.gather(Settings(cache=tmp_path, path=f"{tmp_path / 'a'}:/bin", mpicxx=named))
    assert found.mpi == "MPICH 5.0.2"


def test_an_empty_path_gives_empty_facts(tmp_path):
    found = facts.gather(Settings(cache=tmp_path, path=str(tmp_path)))
    assert (found.cxx, found.cmake, found.make, found.mpicxx, found.mpi, found.cmake_version) == ("",) * 5 + ((),)


@pytest.mark.parametrize(("header", "standard"), [("< 201703L", 17), ("< 202002L", 20), ("<= 201703L", 17), ("", 17)])
def test_the_standard_comes_from_torch_itself(tmp_path, header, standard):
    file = tmp_path / "include/torch/csrc/api/include/torch/all.h"
    file.parent.mkdir(parents=True)
    file.write_text(f"#if !defined(_MSC_VER) && __cplusplus {header}\n#error x\n#endif\n")
    assert facts._standard(tmp_path) == standard


@pytest.mark.parametrize(
    ("text", "cuda"), [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = None", ""), ("cuda: str | None = None", "")]
)
def test_the_cuda_of_torch_is_read_without_importing_it(tmp_path, text, cuda):
    (tmp_path / "version.py").write_text(f"debug = False\n{text}\nhip = None\n")
    assert facts._torch_cuda(tmp_path) == cuda


def test_the_cache_follows_the_xdg_convention():
    assert default_cache({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == "/x/hvd_trainer"
    assert default_cache({"HOME": "/h"}) == "/h/.cache/hvd_trainer"
