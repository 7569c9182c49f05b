"""How many cores may be used: what the scheduler allows and what the control group pays for."""

from __future__ import annotations

import os

from hvd_trainer.cores import cgroup_quota
from hvd_trainer.doctor.finding import Finding


def check() -> Finding:
    """Warn when the quota is below the cores that are visible: ranks would be throttled, not slow."""
    visible = len(os.sched_getaffinity(0))
    quota = cgroup_quota()
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
