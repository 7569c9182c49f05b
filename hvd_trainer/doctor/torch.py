"""Does torch load, and what does it know of GPUs?"""

from __future__ import annotations

from hvd_trainer.doctor.ask import ask
from hvd_trainer.doctor.finding import Finding

_QUESTION = """
import torch
answer.update(version=torch.__version__, cuda=torch.version.cuda, gpus=torch.cuda.device_count())
"""


def check() -> Finding:
    """Import torch; count the GPUs."""
    answer, why = ask(_QUESTION)
    if not answer:
        return Finding("torch", "fail", f"cannot be imported: {why}", "pip install torch")
    gpus = f"CUDA {answer['cuda']}, {answer['gpus']} GPUs" if answer["cuda"] else "CPU build"
    if answer["cuda"] and not answer["gpus"]:
        return Finding(
            "torch",
            "warn",
            f"{answer['version']}, {gpus}",
            "nothing, if this machine trains on CPUs; else look at the driver (nvidia-smi)",
            answer,
        )
    return Finding("torch", "ok", f"{answer['version']}, {gpus}", "", answer)
