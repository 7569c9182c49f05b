"""How many cores may be used: what the scheduler allows and what the control group pays for."""

from __future__ import annotations

import os
from pathlib import Path

from hvd_trainer.doctor.finding import Finding


def check() -> Finding:
    """Warn when the quota is below the cores that are visible: ranks would be throttled, not slow."""
    visible = len(os.sched_getaffinity(0))
    quota = quota_cores(Path("/sys/fs/cgroup"))
    data = {"cores": visible, "quota": quota}
    if quota and quota < visible:
        return Finding(
            "cores",
            "warn",
            f"{visible} visible, but the control group pays for {quota:g}",
            f"start at most {max(1, int(quota))} ranks x threads on this machine",
            data,
        )
    return Finding("cores", "ok", f"{visible}", "", data)


def quota_cores(root: Path) -> float:
    """Cores that the control group grants, version 2 or 1; 0 without a limit.

    Args:
        root: where the control groups are mounted.
    """
    unified, period, quota = root / "cpu.max", root / "cpu/cpu.cfs_period_us", root / "cpu/cpu.cfs_quota_us"
    try:
        if unified.is_file():
            granted, length = unified.read_text().split()
        else:
            granted, length = quota.read_text().strip(), period.read_text().strip()
        return int(granted) / int(length) if granted not in ("max", "-1") else 0.0
    except (OSError, ValueError):
        return 0.0
