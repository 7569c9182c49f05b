"""A job that trains nothing: steps to target follow a hyperbola of the batch and how far the rate is from the best."""

import json
import math
from pathlib import Path

from hvd_trainer.tune.job import JobEnd

NOISE, FEWEST_STEPS, BEST_RATE, STEP_S = 256.0, 100.0, 1.0, 0.001
CONFIG = {"global_batch": 64, "lr": 0.1, "optimizer": "sgd", "warmup_epochs": 0.0, "seed": 0}
UNLUCKY = 1.3  # steps of other seeds than 0, times


class FakeJob:
    """Stands for the launcher; `calls` are the orders it got for trials, `phase_calls` those without a target, `jobs` counts starts.

    Args:
        roles: fields of the script's config.
        interrupt_at: number of the trial that is met by Ctrl-C.
        fail: fields -> JobEnd, or None to train.
        noise: what a run with `measure_noise` says of it; None: undetermined.
        run_s: seconds that each run says it took.
        losses: ranks -> the first losses; default: all alike.
        backends: that start.
    """

    def __init__(self, roles=("global_batch", "lr", "optimizer", "warmup_epochs"), interrupt_at=None, fail=lambda fields: None,
                 noise=None, run_s=None, losses=lambda ranks: 2.0, backends=("",)):  # fmt: skip
        self.config = {name: CONFIG[name] for name in roles}
        self.calls, self.phase_calls, self.jobs = [], [], 0
        self._interrupt_at, self._fail, self._noise, self._run_s, self._losses, self._backends = interrupt_at, fail, noise, run_s, losses, backends

    def __call__(self, ranks, order_path, timeout_s):
        self.jobs += 1
        job = json.loads(Path(order_path).read_text())
        if job["backend"] not in self._backends:
            return JobEnd(1, f"no backend {job['backend']}")
        for order in job["runs"]:
            ended = self._run(order, ranks)
            if ended is not None:
                return ended
        return JobEnd(0, "")

    def _run(self, order, ranks):
        (self.calls if order["metric"] else self.phase_calls).append(order)
        if len(self.calls) == self._interrupt_at and order["metric"]:
            raise KeyboardInterrupt
        config = {**self.config, **order["fields"]}
        names = {"warmup" if name == "warmup_epochs" else name: name for name in self.config}
        events = [{"event": "config", "fields": names, "config": config}]
        batch, scale = config["global_batch"], config["global_batch"] / 32
        peak = config["lr"] * scale
        optimizer = config.get("optimizer", "sgd")
        events.append({"event": "start", "global_batch": batch, "peak_lr": peak, "optimizer": optimizer, "ranks": ranks, "rule": "linear",
                       "lr_scale": scale, "reference_batch": 32.0, "num_samples": 20_000, "warmup_steps": 0.0, "total_steps": 100_000})  # fmt: skip
        ended = self._fail(order["fields"])
        if ended is None:
            events.append(self._end(order, batch, peak, optimizer, ranks, config.get("seed", 0)))
        Path(order["events"]).write_text("".join(json.dumps(event) + "\n" for event in events))
        return ended

    def _end(self, order, batch, peak, optimizer, ranks, seed):
        best = BEST_RATE / (1 + NOISE / batch) * (1.0 if optimizer == "sgd" else 0.01)
        step_s = STEP_S * (1 + batch / 512 / ranks)
        end = {"event": "end", "wall_s": self._run_s}
        if order["sweep"]:
            rates = [order["sweep"]["lowest"] * 2**number for number in range(12)]
            kept = [rate for rate in rates if rate <= 8 * best]
            return {**end, "outcome": "cap", "step": len(kept),
                    "sweep": {"rates": kept, "losses": [2.0 if rate <= 2.5 * best else 9.0 for rate in kept], "stopped": "diverged", "suggested": best / 2, "lowest_loss_at": best, "note": ""}}  # fmt: skip
        if not order["metric"]:
            return {**end, "outcome": "cap", "step": order["max_steps"], "samples": batch * order["max_steps"], "train_s": 0.01, "step_s": step_s,
                    "losses": [self._losses(ranks)] * order["num_losses"], "peak_bytes": 10**8 + 10**4 * batch // ranks}  # fmt: skip
        if peak > 2.5 * best:
            return {**end, "outcome": "diverged", "step": 9, "samples": 9 * batch, "train_s": 0.01, "step_s": 0.001, "message": "loss 99"}
        steps = math.ceil(FEWEST_STEPS * (1 + NOISE / batch) * (1 + math.log2(peak / best) ** 2) * (UNLUCKY if seed else 1.0))
        outcome = "met"
        if order["max_train_s"] and steps * step_s > order["max_train_s"]:
            steps, outcome = max(1, int(order["max_train_s"] / step_s)), "cap"
        if order["measure_noise"] and self._noise is not None:
            end.update(noise_scale=self._noise, noise_low=self._noise / 2, noise_high=2 * self._noise)
        return {**end, "outcome": outcome, "step": steps, "samples": steps * batch, "train_s": steps * step_s, "step_s": step_s, "value": 0.4}
