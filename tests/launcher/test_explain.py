"""A failed build names the requirement that is missing."""

import pytest

from hvd_trainer.launcher.horovod_build.explain import explain, last_words, report


@pytest.mark.parametrize(
    ("log", "what"),
    [
        ("fatal error: error writing to /tmp/x.s: No space left on device", "disk is full"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "out of memory"),
        ("ERROR: Could not find a version that satisfies the requirement", "package index"),
        ("Could NOT find CUDAToolkit (missing: CUDAToolkit_INCLUDE_DIR)", "CUDA toolkit"),
        ("CMake Error: Could NOT find MPI (missing: MPI_CXX_FOUND)", "no MPI"),
        ("ModuleNotFoundError: No module named 'cffi'", "Python package"),
        ("Compatibility with CMake < 3.5 has been removed from CMake.", "cmake"),
        ("c++: error: unrecognized command-line option '-std=c++17'", "too old"),
        ("x.c:1: fatal error: Python.h: No such file or directory", "headers of Python"),
        ("something nobody has seen", "compiler stopped"),
    ],
)
def test_signs(log, what):
    need = explain(log)
    assert what in need.what and need.cure


def test_ordinary_output_is_no_sign():
    chatter = "\n".join(
        [
            "-- Check for working CXX compiler: /tmp/cxx - skipped",
            "Compatibility with CMake < 3.10 will be removed from a future version of CMake.",
            "-- Found MPI: TRUE (found version 3.1)",
        ]
    )
    assert explain(chatter).what == "the compiler stopped"


def test_errors_are_shown_before_the_end_of_the_log():
    log = "\n".join(["start", "a.cc:3: error: expected ';'", *["noise"] * 50])
    assert last_words(log) == ["a.cc:3: error: expected ';'"]
    assert last_words("a\nb\n\nc\n", count=2) == ["b", "c"]


def test_the_report_names_the_whole_log(tmp_path):
    log = tmp_path / "log"
    log.write_text("No space left on device")
    text, cure = report(log)
    assert str(log) in text and "--cache" in cure
