"""`hvd-trainer bench predict --hosts` over a link of a known speed, between two namespaces of this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import ROOT, environment, missing

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

HOSTS_SH = ROOT / "tests/cluster/hosts.sh"
MBIT = 100
SHAPE = f"tc qdisc replace dev eth0 root tbf rate {MBIT}mbit burst 64kb latency 50ms"


@pytest.fixture
def hosts() -> Iterator[str]:
    """Two hosts with a slow link; the folder that hosts.sh knows them by."""
    for program in ("unshare", "nsenter", "ip", "tc", "ssh-keygen", "sshd"):
        if not shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin"):
            missing("cluster", f"{program} is not installed")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        missing("cluster", "no right to make network namespaces")
    folder = tempfile.mkdtemp(prefix="hosts.")
    subprocess.run([HOSTS_SH, "up", folder, "h1", "h2"], check=True, capture_output=True)
    try:
        for host in ("h1", "h2"):
            done = subprocess.run([HOSTS_SH, "on", folder, host, *SHAPE.split()], capture_output=True, text=True)
            if done.returncode:
                missing("cluster", f"tc has no token bucket here: {done.stderr.strip()}")
        yield folder
    finally:
        subprocess.run([HOSTS_SH, "down", folder], check=True)


def test_the_link_between_two_hosts_is_found_and_more_hosts_are_predicted(hosts: str, tmp_path: Path) -> None:
    words = ["--script", ROOT / "benchmarks/predict_hosts_model.py", "--hosts", "h1:1,h2:1", "--engine", "torch"]
    command = [sys.executable, "-m", "hvd_trainer", "bench", "predict", *words, "--ranks", "2,4", "--budget", "1", "--out", tmp_path / "out"]
    done = subprocess.run(
        [str(word) for word in [HOSTS_SH, "on", hosts, "h1", "timeout", "-k", "5", 240, *command]],
        cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "extrapolated from 2 nodes" in done.stdout
    (path,) = (tmp_path / "out").iterdir()
    found = json.loads(path.read_text())
    link = found["fits"]["links"]["between"]
    # What a byte takes in an exchange, gloo's ring: a tenth more than the rate for headers, and the fit's own 25 %.
    assert link["seconds_per_byte"] * link["duplex"] == pytest.approx(8e-6 / MBIT * 1.05, rel=0.25)
    two, four = found["result"]
    # 4.7 MB: once through the link on two hosts, one and a half times on four.
    once_s = sum(found["measurements"]["buckets"]) * 8e-6 / MBIT
    assert two["sync"]["value"] == pytest.approx(1.05 * once_s, rel=0.25)
    assert four["sync"]["value"] == pytest.approx(1.05 * 1.5 * once_s, rel=0.25)
    assert two["step"]["value"] > two["sync"]["value"] > two["compute_s"]
