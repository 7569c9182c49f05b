"""A small GPT that learns the characters of Python's own manual (`pydoc_data.topics`, 0.4 million of them):

    python examples/char_transformer.py
    mpirun -np 2 python examples/char_transformer.py --set steps=100 --json result.json

Paragraphs differ in length, so ranks hold different numbers of characters; the loss is the mean over all of them.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from parts.gpt import GPT
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import hvd_trainer as ht

LONGEST, IGNORED = 128, -100


@dataclass
class Config:
    global_batch: int = 32  # paragraphs
    lr: float = 3e-3  # for a batch of 32
    steps: int = 300
    log: str = "runs/char_transformer.jsonl"  # a line a step
    json: str = ""


def paragraphs():
    """One tensor of characters (as numbers from 1) a paragraph, and the size of the vocabulary."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    number = {character: i + 1 for i, character in enumerate(sorted(set(text)))}
    return [torch.tensor([number[c] for c in part[:LONGEST]]) for part in text.split("\n\n") if part], len(number) + 1


def collate(samples):
    """Input and what comes next; padding is ignored, and causal attention never looks at it."""
    x = pad_sequence([F.pad(sample[:-1], (1, 0), value=0) for sample in samples], batch_first=True)
    return x, pad_sequence(samples, batch_first=True, padding_value=IGNORED)


def loss_fn(model, batch):
    x, y = batch
    total = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum", ignore_index=IGNORED)
    return ht.Weighted(total, (y != IGNORED).sum())


def main(comm, config):
    samples, vocabulary = paragraphs()
    torch.manual_seed(0)
    model = GPT(vocabulary, LONGEST).to(comm.device)
    plan = ht.BatchPlan(config.global_batch, comm.size, reference_batch=32)
    loader = ht.Loader([s for i, s in enumerate(samples) if i % 10], plan, comm, seed=0, collate_fn=collate)
    evaluate = ht.Evaluate(samples[::10], {"test_loss": loss_fn}, collate_fn=collate, batch_size=32)
    trainer = ht.Trainer(
        comm, model, torch.optim.AdamW(model.parameters(), lr=config.lr), loss_fn,
        lr_scaling="sqrt", clip_norm=1.0, schedule=ht.schedules.cosine(),
        callbacks=[ht.Warmup(steps=30, start_factor=0.0), evaluate, ht.JsonLines(config.log, every_steps=1), ht.Progress()],
    )  # fmt: skip
    history = trainer.fit(loader, steps=config.steps)
    if config.json and comm.rank == 0:
        result = {**history[-1], "ranks": comm.size, "lr_peak": trainer.optimizer.peak_lr}
        Path(config.json).write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    parser.add_argument("--json", help="where rank 0 writes the result")
    ht.run(main, Config(**vars(parser.parse_known_args()[0])))  # --set and --config are read by ht.run
