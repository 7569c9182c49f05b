"""A report.json as `tune` writes it, with everything in it, from a known hyperbola: what tests of the page read."""

import math

from hvd_trainer.cost.steps_to_target import Hyperbola

CURVE = Hyperbola(150.0, 240.0)


def best_rate(batch):
    return 1.0 / (1 + 200.0 / batch)


def step_s(ranks, batch):
    return 0.0008 + 1.2e-5 * batch / ranks + (0.0011 if ranks > 1 else 0.0)


def trial(label, ranks, batch, lr, at, optimizer="sgd", outcome=None, steps=None):
    off = abs(math.log2(lr / best_rate(batch)))
    if outcome is None:
        outcome = "diverged" if lr > 2.5 * best_rate(batch) else "cap reached" if off > 1.8 else "target met"
    steps = steps or round(CURVE.steps(batch) * (1 + 0.25 * off**2) * (1 + 0.04 * math.sin(7.0 * batch)) * (1.3 if optimizer == "lamb" else 1.0))
    steps = 12 if outcome == "diverged" else steps
    seconds = step_s(ranks, batch) * (1 + 0.02 * math.cos(3.0 * batch))
    start = {
        "event": "start", "global_batch": batch, "peak_lr": lr, "optimizer": optimizer, "ranks": ranks, "rule": "linear", "lr_scale": ranks,
        "reference_batch": batch / ranks, "num_samples": 50000, "steps_per_epoch": 50000 // batch, "total_steps": 99999, "warmup_steps": 20.0,
    }  # fmt: skip
    default = label == "script's default"
    settings = {"ranks": ranks, "global_batch": None if default else batch, "peak_lr": None if default else lr, "optimizer": None, "warmup_samples": None}
    result = {
        "outcome": outcome, "reason": "" if outcome == "target met" else "the cap of this trial" if outcome != "diverged" else "loss 37.1 at step 12",
        "steps": steps, "samples": steps * batch, "train_s": steps * seconds, "step_s": seconds, "value": 0.42, "wall_s": steps * seconds + 3.0,
        "fields": {}, "start": start, "config": {}, "checks": [], "noise_scale": None, "last_lines": "",
    }  # fmt: skip
    return {"label": label, "settings": settings, "result": result, "at": float(at)}


def trials():
    found = []
    for ranks in (2, 1):
        found.append(trial("script's default", ranks, 32, 0.1, len(found)))
        for batch in (128, 512):
            found.append(trial("linear rule", ranks, batch, 0.1 * batch / 32, len(found)))
            found.append(trial("noise rule", ranks, batch, best_rate(batch), len(found)))
        found.append(trial("N x what fits", ranks, 4096 * ranks, 12.8 * ranks, len(found)))
        for number in range(22):
            batch = round(16 * 2 ** (number * 8 / 21))
            found.append(trial("search", ranks, batch, best_rate(batch) * 2 ** (1.3 * math.sin(2.3 * number + 0.4 * ranks)), len(found)))
    found.append(trial("search", 2, 192, 0.01, len(found), "lamb", "target met"))
    return found


def phases():
    samples = [1000 * k for k in range(1, 36)]
    noise = [[s // 256, s, 60 + 220 * (s / 35000) ** 0.8 * (1 + 0.1 * math.sin(s / 900))] for s in samples]
    rates = [1e-3 * 1.12**k for k in range(80)]
    rows = [
        {"ranks": ranks, "global_batch": batch, "peak_lr": best_rate(batch), "steps": 148 * (1 + 195 / batch), "labels": ["predicted"], "steps_low": None,
         "seconds": 148 * (1 + 195 / batch) * step_s(ranks, batch)}
        for ranks in (1, 2, 4, 8) for batch in (16, 64, 256, 1024, 4096)
    ]  # fmt: skip
    return {
        "check": {"global_batch": 32, "losses": {"1": [2.3, 2.2], "2": [2.3, 2.2]}, "limit": 1e-4, "ranks": 2, "difference": 2.1e-7, "agrees": True, "causes": [], "note": ""},
        "memory": {"2": {"micro_batch": 4096, "limit_gib": 1.6}, "1": {"micro_batch": 4096, "limit_gib": 3.2}},
        "step_time": {
            "points": [{"ranks": n, "global_batch": b, "step_s": step_s(n, b) * (1 + 0.03 * math.sin(b))} for n in (1, 2) for b in (32, 128, 512, 2048)],
            "fit": {"median_error": 0.02},
        },
        "lr_range": {
            "rates": rates, "losses": [2.3 - 1.7 / (1 + (0.15 / r) ** 1.3) + (0.02 * r) ** 4 + max(0.0, r - 2.0) for r in rates],
            "global_batch": 4096, "suggestion": 0.31, "lowest_loss_at": 1.9, "highest_rate": rates[-1], "stopped": "the loss rose to four times its least", "note": "",
        },
        "noise": {"global_batch": 256, "noise_scale": 195.0, "low": 160.0, "high": 238.0, "curve": noise},
        "prediction": {"rows": rows, "best": {"2": rows[7]}, "critical_batch": 195.0, "note": ""},
        "finalists": [{"global_batch": 180, "peak_lr": 0.47, "seeds": [None, 1, 2], "seconds": [1.52, 1.61, 1.7], "median_s": 1.61}],
        "ranks": [{"ranks": 1, "seconds": 1.9, "speed_up": 1.0, "efficiency": 1.0}, {"ranks": 2, "seconds": 1.61, "speed_up": 1.18, "efficiency": 0.59}],
        "notes": ["finalists: each trial has one seed, for the config has no field `seed`"],
        "backends": [{"backend": "mpi", "step_s": 0.0031}, {"backend": "gloo", "step_s": 0.0049}],
    }  # fmt: skip


def report(with_phases=True):
    found = {
        "script": "train.py", "target": "val_loss<=0.42", "budget_s": 900.0, "interrupted": False,
        "recommended": {"2": {"global_batch": 180, "lr": 0.5, "warmup_epochs": 0.05}, "1": {"global_batch": 128, "lr": 0.4}},
        "sentences": {}, "trials": trials(),
    }  # fmt: skip
    return {**found, "phases": phases()} if with_phases else found
