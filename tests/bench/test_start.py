"""Processes: their output, their exit code, and their end where they do not end by themselves."""

import os
import sys
import time

from hvd_trainer.bench import start

ENV = dict(os.environ)


def test_code_and_both_streams():
    ended = start.run([sys.executable, "-S", "-c", "import sys; print('out'); sys.stderr.write('err'); sys.exit(3)"], ENV)
    assert ended.code == 3 and "out" in ended.text and "err" in ended.text


def test_what_does_not_end_is_killed_with_its_children(tmp_path):
    pid = tmp_path / "pid"
    began = time.monotonic()
    ended = start.run(["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"], ENV, timeout_s=0.5)
    assert ended.code is None and time.monotonic() - began < 10
    assert not alive(int(pid.read_text()))


def alive(pid):
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return False
        except FileNotFoundError:
            return False
        time.sleep(0.05)
    return True


def test_the_tail_is_the_end():
    assert start.Ended(1, "\n".join(map(str, range(100)))).tail.splitlines()[-1] == "99"
    assert len(start.Ended(1, "x\n" * 100).tail.splitlines()) == 40
