"""A job that trains nothing: steps to target follow a hyperbola of the batch and how far the rate is from the best."""

import json
import math
from pathlib import Path

from hvd_trainer.tune.job import JobEnd

NOISE, FEWEST_STEPS, BEST_RATE, STEP_S = 256.0, 100.0, 1.0, 0.001
CONFIG = {"global_batch": 64, "lr": 0.1, "optimizer": "sgd", "warmup_epochs": 0.0}


class FakeJob:
    """Stands for the launcher; `calls` are the orders it got.

    Args:
        roles: fields of the script's config.
        interrupt_at: number of the call that is met by Ctrl-C.
        fail: fields -> JobEnd, or None to train.
    """

    def __init__(self, roles=("global_batch", "lr", "optimizer", "warmup_epochs"), interrupt_at=None, fail=lambda fields: None):
        self.config = {name: CONFIG[name] for name in roles}
        self.calls, self._interrupt_at, self._fail = [], interrupt_at, fail

    def __call__(self, ranks, order_path, timeout_s):
        order = json.loads(Path(order_path).read_text())
        self.calls.append(order)
        if len(self.calls) == self._interrupt_at:
            raise KeyboardInterrupt
        events = []
        config = {**self.config, **order["fields"]}
        names = {"warmup" if name == "warmup_epochs" else name: name for name in self.config}
        events.append({"event": "config", "fields": names, "config": config})
        batch, scale = config["global_batch"], config["global_batch"] / 32
        peak = config["lr"] * scale
        optimizer = config.get("optimizer", "sgd")
        events.append({"event": "start", "global_batch": batch, "peak_lr": peak, "optimizer": optimizer, "ranks": ranks, "rule": "linear",
                       "lr_scale": scale, "reference_batch": 32.0, "num_samples": 20_000, "warmup_steps": 0.0})  # fmt: skip
        ended = self._fail(order["fields"])
        if ended is None:
            events.append(self._end(order, batch, peak, optimizer, ranks))
            ended = JobEnd(0, "")
        Path(order["events"]).write_text("".join(json.dumps(event) + "\n" for event in events))
        return ended

    def _end(self, order, batch, peak, optimizer, ranks):
        best = BEST_RATE / (1 + NOISE / batch) * (1.0 if optimizer == "sgd" else 0.01)
        if peak > 2.5 * best:
            return {"event": "end", "outcome": "diverged", "step": 9, "samples": 9 * batch, "train_s": 0.01, "step_s": 0.001, "message": "loss 99"}
        steps = math.ceil(FEWEST_STEPS * (1 + NOISE / batch) * (1 + math.log2(peak / best) ** 2))
        step_s = STEP_S * (1 + batch / 512 / ranks)
        outcome = "met"
        if order["max_train_s"] and steps * step_s > order["max_train_s"]:
            steps, outcome = max(1, int(order["max_train_s"] / step_s)), "cap"
        return {"event": "end", "outcome": outcome, "step": steps, "samples": steps * batch, "train_s": steps * step_s, "step_s": step_s, "value": 0.4}
