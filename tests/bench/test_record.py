"""The record names what it was measured on, and reads back as it was."""

import json

from hvd_trainer.bench import record


def test_versions_leave_out_what_is_not_installed():
    found = record.versions(("torch", "no-such-package-of-ours"))
    assert found.keys() == {"python", "torch"}


def test_machine_reads_proc(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A CPU\nmodel name\t: another\n")
    (tmp_path / "meminfo").write_text("MemTotal:       16777216 kB\n")
    found = record.machine(tmp_path)
    assert found["cpu"] == "A CPU" and found["memory_gib"] == 16.0 and found["cores"] >= 1 and len(found["load"]) == 3
    assert "cpu" not in record.machine(tmp_path / "elsewhere")


def test_a_record_reads_back(tmp_path):
    content = record.head("step", "hvd-trainer bench step", {"ranks": 2}, {"compute": "mpirun ..."})
    content["ms"] = {"mlp": {"compute": [[[1.5, 2.0], [float(3)]]]}, "empty": {}}
    path = record.write(tmp_path / "new", content)
    assert json.loads(path.read_text()) == content
    assert path.name.startswith("step-20") and path.read_text().count("\n") < 60
