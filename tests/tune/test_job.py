"""A trial's process: its output and code, its time limit, and that nothing of it is left."""

import os
import signal
import sys
import threading
import time

import pytest

from hvd_trainer.tune.job import run_job

CHILD = "import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True); time.sleep({})"


def test_code_and_both_streams():
    ended = run_job([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"], {}, 60)
    assert ended.code == 3 and sorted(ended.text.split()) == ["err", "out"]


@pytest.mark.parametrize(("sleep_s", "limit_s", "code"), [(60, 2.0, None), (0, 60, 0)])
def test_a_process_that_the_job_started_is_ended_too(sleep_s, limit_s, code):
    ended = run_job([sys.executable, "-c", CHILD.format(sleep_s)], dict(os.environ), limit_s)
    assert ended.code == code
    deadline = time.monotonic() + 5
    while is_running(int(ended.text)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(int(ended.text))


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_job_keeps_to_the_processors_that_it_was_given_and_we_keep_ours():
    mine = sorted(os.sched_getaffinity(0))
    ended = run_job([sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"], {}, 60, cores=mine[-1:])
    assert ended.text.strip() == str(mine[-1:]) and sorted(os.sched_getaffinity(0)) == mine


def test_a_job_in_a_thread_is_stopped():
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        run_job([sys.executable, "-c", "import time; time.sleep(60)"], {}, 60, stop=stop)


def test_an_impatient_ctrl_c_leaves_nothing_behind(tmp_path, ctrl_c_raises):
    """The second comes while the job, which does not listen to SIGTERM, is being ended."""
    started = tmp_path / "pid"
    program = f"import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(60)"

    def press():
        while not started.exists() or not started.read_text():
            time.sleep(0.02)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    threading.Thread(target=press).start()
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_job([sys.executable, "-c", program], {}, 60)
    assert not is_running(int(started.read_text())) and time.monotonic() - began_s < 30
    time.sleep(0.3)  # the thread's second signal is over
