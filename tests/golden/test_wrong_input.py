"""A user's mistake gives one clear message for the job, an exit code that is not 0 within 10 s, and no process left."""

import json
import re
import time

import pytest

from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import HvdTrainerError
from tests.harness import run_ranks
from tests.multi.wrong_input import ALONE, save_a_run
from tests.multi.wrong_input import main as make_mistake
from tests.rank_start import NO_COMPILER

# Mistake -> words that the message must have.
MISTAKES = {
    "unknown backend": ["ncll", "nccl", "mpi", "gloo"],
    "unknown engine": ["horovd", "horovod"],
    "nccl without gpu": ["nccl", "GPU"],
    "timeout of zero": ["timeout_s"],
    "global batch of zero": ["global_batch=0", "a whole number >= 1"],
    "global batch of a half": ["global_batch=8.5"],
    "global batch below ranks": ["global_batch=1", "at least 2"],
    "empty data set": ["0 samples", "at least 1"],
    "data sets differ": ["103", "100", "rank 1"],
    "model without parameters": ["no parameters"],
    "models differ": ["rank 1", "0.bias"],
    "loss is a float": ["the loss is a float", "ht.Weighted"],
    "loss is a plain tensor": ["plain tensor", "loss_reduction"],
    "loss has a shape": ["shape", "one element"],
    "loss without gradient": ["no gradient"],
    "loss is nan on rank 1": ["nan on rank 1", "step 3"],
    "weight 0 everywhere": ["weight 0 on every rank", "step 1"],
    "rate is nan": ["learning rate nan"],
    "rate is negative": ["Invalid learning rate: -0.1"],
    "unknown scaling rule": ["quadratic", "linear", "sqrt"],
    "schedule gives nan": ["learning rate nan"],
    "metric is a mean": ["accuracy", "ht.Weighted"],
    "callback is a class": ["Progress", "an object"],
    "loss raises on rank 1": ["rank 1 of 2", "step 3", "the loss failed"],
    "callback raises on rank 1": ["rank 1 of 2", "step 3", "the callback failed"],
    "resume another model": ["another model", "0.bias"],
    "resume from nothing": ["no checkpoint"],
    "mpi engine with gloo": ["engine 'mpi' with backend 'gloo'"],
    "single engine on 2 ranks": ["single", "2 processes were started"],
    "data set raises at one index": ["NoneType"],
    "metric named loss": ["loss", "prefix"],
    "empty validation set": ["0 samples"],
    "validation sets differ": ["rank 0: 10", "rank 1: 11"],
    "checkpoint folder is a file": ["cannot be written"],
    "negative warm-up": ["epochs"],
    "early stop on nothing": ["val_los"],
    "lbfgs": ["LBFGS"],
    "optimizer wrapped already": ["not wrapped"],
    "init twice": ["called before in this process"],
    "unknown precision": ["int8", "bf16"],
    "no epochs": ["epochs", "steps"],
    "half an epoch": ["0.5", "a whole number"],
}
# The program itself raises, so a traceback is due.
OWN_TRACEBACK = ("rate is negative", *ALONE)
ALIKE = [mistake for mistake in MISTAKES if mistake not in ALONE]
# Each way to the message with the end of a real job: before the start, on all ranks, on one.
JOBS = [
    ("mpirun", "unknown backend"),
    ("mpirun", "models differ"),
    ("mpirun", "callback raises on rank 1"),
    ("horovodrun-gloo", "loss raises on rank 1"),
    *[pytest.param("mpirun", mistake, marks=pytest.mark.slow) for mistake in ALONE if mistake != "callback raises on rank 1"],
    *[pytest.param(launcher, "models differ", marks=pytest.mark.slow) for launcher in ("horovodrun-gloo", "horovodrun-mpi")],
]


@pytest.mark.parametrize(("launcher", "mistake"), JOBS)
def test_one_message_and_the_end(launcher, mistake, tmp_path):
    result = run_ranks(launcher, 2, ["-m", "tests.multi.wrong_input", mistake, tmp_path], timeout_s=60, env=NO_COMPILER)
    ended = time.time()
    result.failed(*MISTAKES[mistake])
    assert ended - float((tmp_path / "begun").read_text()) <= 10, result
    messages = re.findall(r"hvd_trainer: rank \d+ of \d+ (?:failed|ended)", result.text)
    assert len(messages) == 1, result
    # Only what the ranks print: horovodrun shows a traceback of its own launcher after any failure.
    printed = "\n".join(line for line in result.text.splitlines() if launcher == "mpirun" or line.startswith("["))
    assert ("Traceback" in printed) == (mistake in OWN_TRACEBACK), result


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each of two ranks says of each mistake: one start for all of them."""
    folder = tmp_path_factory.mktemp("mistakes")
    save_a_run(folder)
    result = run_ranks("mpirun", 2, ["-m", "tests.multi.wrong_input", "each", folder, *ALIKE], timeout_s=120, env=NO_COMPILER)
    file = folder / "each.json"
    assert file.exists(), result
    return result, json.loads(file.read_text())


@pytest.mark.parametrize("mistake", ALIKE)
def test_all_ranks_get_the_error_and_it_says_what_is_wrong(mistake, told):
    """Alike, so that the guard prints one of them (above) and no rank waits for the others."""
    result, found = told
    assert mistake in found, f"the job ended before the ranks had got the error\n{result}"
    for rank, (message, seconds) in enumerate(found[mistake]):
        for word in MISTAKES[mistake]:
            assert word in message, f"{word!r} is not in what rank {rank} says: {message}"
        assert ("Traceback" in message) == (mistake in OWN_TRACEBACK), message
        assert seconds <= 10
    assert len(found[mistake]) == 2


def test_one_process_says_the_same(tmp_path):
    """As it ends there: with the message alone."""
    mistake = "loss is a float"
    program = ["-m", "tests.multi.wrong_input", mistake, tmp_path]
    result = run_ranks("alone", 1, program, env=NO_COMPILER).failed(*MISTAKES[mistake])
    assert "Traceback" not in result.text, result


@pytest.mark.parametrize("mistake", ["global batch of zero", "rate is nan"])
def test_one_process_gets_the_same_error(mistake, tmp_path):
    with pytest.raises(HvdTrainerError) as caught:
        make_mistake(SingleCommunicator(), mistake, tmp_path)
    assert all(word in str(caught.value) for word in MISTAKES[mistake])
