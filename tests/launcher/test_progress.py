"""Progress is one moving line on a terminal and a plain line now and then elsewhere."""

import io

from hvd_trainer.launcher.horovod_build.progress import Progress


def shown(terminal, lines):
    now = [0.0]
    out = io.StringIO()
    progress = Progress(out, clock=lambda: now[0], terminal=terminal)
    for second, line in lines:
        now[0] = second
        progress.see(line)
    progress.done()
    return out.getvalue()


def test_plain_lines_are_few_and_never_run_backwards():
    text = shown(
        False, [(1, "[ 10%] Building"), (25, "[ 60%] Building"), (30, "[ 61%] x"), (50, "[  1%] other target")]
    )
    assert text.splitlines() == ["  building Horovod:   25 s,  60 %", "  building Horovod:   50 s,  61 %"]


def test_a_terminal_gets_one_line_that_is_removed_at_the_end():
    text = shown(True, [(1, "[ 10%] Building"), (2, "[100%] Built")])
    assert "\n" not in text and "100 %" in text and text.endswith("\r")
