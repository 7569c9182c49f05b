"""Does Horovod load, what was it built with, and which repairs does it carry?"""

from __future__ import annotations

import shutil

from hvd_trainer.doctor.ask import ask
from hvd_trainer.doctor.finding import Finding

_BUILD = "hvd-trainer install-horovod"

# The record is the installer's; a Horovod that somebody else built has none.
_QUESTION = """
import json, pathlib
import horovod
record = pathlib.Path(horovod.__file__).with_name("hvd_trainer_build.json")
answer["record"] = json.loads(record.read_text()) if record.is_file() else {}
answer["version"] = horovod.__version__
try:
    import torch
    answer["torch"] = torch.__version__
    import horovod.torch as hvd
    answer.update(mpi=bool(hvd.mpi_built()), gloo=bool(hvd.gloo_built()), nccl=bool(hvd.nccl_built()))
except Exception as error:
    answer["error"] = f"{type(error).__name__}: {error}"
"""


def check() -> Finding:
    """Import Horovod; list engines and repairs. Without it training goes through MPI, so nothing here is a failure."""
    answer, why = ask(_QUESTION, timeout_s=120)
    if not answer:
        return Finding("horovod", "warn", f"not usable: {why} (training works through MPI without it)", _BUILD)
    built_for = answer["record"].get("inputs", {}).get("torch", "")
    if "error" in answer:
        other = f"\nit was built for torch {built_for}, here is {answer.get('torch', 'none')}" if built_for else ""
        return Finding(
            "horovod",
            "warn",
            f"{answer['version']} does not load: {answer['error']}{other}",
            f"{_BUILD} --rebuild",
            answer,
        )
    engines = ", ".join(name for name in ("mpi", "gloo", "nccl") if answer[name])
    lines = [f"{answer['version']} with {engines}"]
    if not answer["record"]:
        lines.append("not built by this program: the known faults of the release may be in it")
        return Finding("horovod", "warn", "\n".join(lines), f"{_BUILD} --rebuild", answer)
    repairs = answer["record"].get("repairs", [])
    lines.append(f"repairs: {', '.join(repair['name'] for repair in repairs) or 'none (--no-repairs)'}")
    if not _same_torch(built_for, answer["torch"]):
        lines.append(f"built for torch {built_for}, here is {answer['torch']}")
        return Finding("horovod", "warn", "\n".join(lines), _BUILD, answer)
    if not shutil.which("horovodrun"):
        return Finding(
            "horovod", "warn", "\n".join([*lines, "horovodrun is not on PATH"]), "activate the environment", answer
        )
    return Finding("horovod", "ok", "\n".join(lines), "", answer)


def _same_torch(built_for: str, here: str) -> bool:
    """Whether two versions can be of one torch; a package's own metadata may leave out what follows the plus.

    Example:
        >>> _same_torch("2.13.0", "2.13.0+cu130"), _same_torch("2.13.0+cpu", "2.13.0+cu130"), _same_torch("2.13.0", "2.14.0")
        (True, False, False)
    """
    (base, _, kind), (other_base, _, other_kind) = built_for.partition("+"), here.partition("+")
    return base == other_base and (kind == other_kind or not kind or not other_kind)
