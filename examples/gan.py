"""A GAN in a loop of your own: two models, two optimizers, eight Gaussians on a ring to imitate.

    python examples/gan.py
    mpirun -np 2 python examples/gan.py --set steps=500 --json result.json
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset

import hvd_trainer as ht


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def main(comm, config):
    torch.manual_seed(0)  # the same points and noise on all ranks; each takes its share of every batch
    angle, count = torch.arange(8) * (math.pi / 4), config["steps"] * config["global_batch"]
    centres = 2 * torch.stack([angle.cos(), angle.sin()], dim=1)
    points = centres[torch.randint(8, (count,))] + 0.1 * torch.randn(count, 2)
    generator, discriminator = mlp(4, 2).to(comm.device), mlp(2, 1).to(comm.device)
    plan = ht.BatchPlan(config["global_batch"], comm.size, reference_batch=256)
    adams = [torch.optim.Adam(model.parameters(), config["lr"], (0.5, 0.9)) for model in (generator, discriminator)]
    g_opt, d_opt = (ht.DistributedOptimizer(adam, comm, lr_scaling="sqrt", plan=plan) for adam in adams)
    steps, started_s = config["steps"], time.perf_counter()
    rates = [ht.LearningRate(opt, ht.schedules.linear(), steps, steps) for opt in (g_opt, d_opt)]
    for step in ht.Loader(TensorDataset(points, torch.randn(count, 4)), plan, comm, shuffle=False).epoch(0):
        for rate in rates:
            rate.apply(g_opt.steps_done)
        d_opt.zero_grad()  # here, because the generator's backward has left gradients in the discriminator
        for micro in step:
            real, noise = micro.data
            score = discriminator(real.requires_grad_())
            (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)  # kept small (arXiv 1801.04406)
            fake_score = discriminator(generator(noise).detach())
            total = softplus(-score).sum() + softplus(fake_score).sum() + 0.25 * slope.square().sum()
            d_opt.backward(ht.Weighted(total, len(real)), last=micro.last)
        d_opt.step()
        g_opt.zero_grad()
        for micro in step:
            noise = micro.data[1]  # through the discriminator and back; only the generator's gradients travel
            total = softplus(-discriminator(generator(noise))).sum()
            g_opt.backward(ht.Weighted(total, len(noise)), last=micro.last)
        g_opt.step()
        if g_opt.steps_done % 500 == 0:
            comm.say(f"step {g_opt.steps_done}: {d_opt.last_loss.mean:.3f} against {g_opt.last_loss.mean:.3f}")
    result = {"ranks": comm.size, "samples_per_s": count / (time.perf_counter() - started_s), "lr_peak": g_opt.peak_lr}
    with torch.no_grad():
        near = torch.cdist(generator(torch.randn(4000, 4).to(comm.device)).cpu(), centres) < 0.4  # 4 deviations
    result |= {"on_ring": float(near.any(1).double().mean()), "centres": int((near.double().mean(0) > 0.02).sum())}
    comm.say(f"{result['on_ring']:.0%} of the points are near one of {result['centres']} centres")
    if config["json"] and comm.rank == 0:
        Path(config["json"]).write_text(json.dumps(result) + "\n")
    return generator, discriminator


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", default="", help="where rank 0 writes the result")
    json_file = parser.parse_known_args()[0].json  # --set and --config are read by ht.run
    ht.run(main, {"global_batch": 256, "lr": 1e-3, "steps": 2000, "json": json_file})
