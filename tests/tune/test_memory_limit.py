"""What is available, from files as Linux writes them."""

import mmap
import resource

import pytest

from hvd_trainer.tune.memory_limit import available_bytes, forget_peak, peak_bytes, private_bytes

MIB = 2**20


def system(root, files):
    for name, text in {"proc/meminfo": "MemTotal:  16384 kB\nMemAvailable:    8192 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return available_bytes(root) / MIB


def v2(limit, usage, inactive=0):
    return {"memory.max": limit, "memory.current": usage, "memory.stat": f"anon 5\ninactive_file {inactive}\n"}


def under(folder, files):
    return {f"{folder}/{name}": text for name, text in files.items()}


@pytest.mark.parametrize(
    ("files", "mib"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/\n", **under("sys/fs/cgroup", v2(6 * MIB, 2 * MIB))}, 4),
        ({"proc/self/cgroup": "0::/\n", **under("sys/fs/cgroup", v2(6 * MIB, 5 * MIB, inactive=2 * MIB))}, 3),  # cached files
        ({"proc/self/cgroup": "0::/a/b\n", **under("sys/fs/cgroup/a", v2(5 * MIB, 0)), **under("sys/fs/cgroup/a/b", v2("max", 0))}, 5),  # SLURM: of the job
        ({"proc/self/cgroup": "0::/../../host/path\n", **under("sys/fs/cgroup", v2(3 * MIB, 0))}, 3),  # a container
        ({"proc/self/cgroup": "0::/a\n", **under("sys/fs/cgroup/a", v2(MIB, 2 * MIB))}, 0),  # over its limit
        ({"proc/self/cgroup": "0::/\n", **under("sys/fs/cgroup", v2("max", 0))}, 8),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/a\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": 7 * MIB,
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": 3 * MIB,
                "sys/fs/cgroup/memory/a/memory.stat": f"total_inactive_file {MIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 3 * MIB,
            },
            5,
        ),
    ],
    ids=["node", "v2", "v2-cache", "v2-above", "container", "over", "v2-max", "v1"],
)
def test_the_tightest_limit_counts(tmp_path, files, mib):
    assert system(tmp_path, files) == mib


def test_ulimit_counts(tmp_path, monkeypatch):
    status = {"proc/self/status": "VmSize:    1024 kB\nVmData:     512 kB\n"}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4 * MIB if which == resource.RLIMIT_AS else resource.RLIM_INFINITY, 0))
    assert system(tmp_path, status) == 3
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2 * MIB if which == resource.RLIMIT_DATA else resource.RLIM_INFINITY, 0))
    assert system(tmp_path, status) == 1.5


def test_a_system_that_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert available_bytes(tmp_path) == float("inf")


def test_this_machine():
    assert MIB < available_bytes() < 2**50
    before, private = forget_peak(), private_bytes()
    block = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE)  # not by malloc, which may have kept as much of another test's
    block.write(bytes(64 * MIB))
    assert peak_bytes() - before > 48 * MIB and private_bytes() - private > 48 * MIB
    block.close()
