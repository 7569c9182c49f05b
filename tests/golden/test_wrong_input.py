"""A user's mistake gives one clear message for the job, an exit code that is not 0 within 10 s, and no process left."""

import re
import time

import pytest

from tests.harness import run_ranks
from tests.multi.wrong_input import save_a_run

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
# One launch takes seconds: these and the rest of the table (`slow`) go different ways to their message.
QUICK = ("unknown backend", "models differ", "loss is a float", "loss is nan on rank 1", "callback raises on rank 1", "resume another model")
# The program itself raises, so a traceback is due.
OWN_TRACEBACK = ("rate is negative", "loss raises on rank 1", "callback raises on rank 1", "data set raises at one index")
# Under Horovod's launcher the way to the message is another one: a mistake on all ranks, on one, and before the start.
UNDER_HOROVODRUN = ["unknown backend", "models differ", "loss is nan on rank 1"]


@pytest.mark.parametrize(
    ("launcher", "mistake"),
    [("mpirun", mistake) if mistake in QUICK else pytest.param("mpirun", mistake, marks=pytest.mark.slow) for mistake in MISTAKES]
    + [("horovodrun-gloo", "loss raises on rank 1")]
    + [pytest.param("horovodrun-gloo", mistake, marks=pytest.mark.slow) for mistake in UNDER_HOROVODRUN]
    + [pytest.param("horovodrun-mpi", mistake, marks=pytest.mark.slow) for mistake in UNDER_HOROVODRUN[:2]],
)
def test_one_message_and_the_end(launcher, mistake, tmp_path):
    if mistake == "resume another model":
        save_a_run(tmp_path)
    result = run_ranks(launcher, 2, ["-m", "tests.multi.wrong_input", mistake, tmp_path], timeout_s=60)
    ended = time.time()
    result.failed(*MISTAKES[mistake], within_s=60)
    assert ended - float((tmp_path / "begun").read_text()) <= 10, result
    messages = re.findall(r"hvd_trainer: rank \d+ of \d+ (?:failed|ended)", result.text)
    assert len(messages) == 1, result
    # Only what the ranks print: horovodrun shows a traceback of its own launcher after any failure.
    printed = "\n".join(line for line in result.text.splitlines() if launcher == "mpirun" or line.startswith("["))
    ours = mistake not in OWN_TRACEBACK
    assert ("Traceback" in printed) != ours, result


@pytest.mark.parametrize("mistake", ["global batch of zero", "loss is a float", "rate is nan"])
def test_one_process_says_the_same(mistake, tmp_path):
    result = run_ranks("alone", 1, ["-m", "tests.multi.wrong_input", mistake, tmp_path]).failed(*MISTAKES[mistake], within_s=60)
    assert "Traceback" not in result.text, result
