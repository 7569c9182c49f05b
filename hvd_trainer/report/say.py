"""A sentence for each recommendation, with what it rests on (pure)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from hvd_trainer.amounts import show_count
from hvd_trainer.cost import policies
from hvd_trainer.cost.policies import (
    EXTRAPOLATED,
    MEASURED,
    RECOMMENDED,
    WORTH,
    linear_excess,
    speed_up_caution,
    worth_it,
)
from hvd_trainer.durations import show_duration
from hvd_trainer.optim.noise import gain
from hvd_trainer.report.curves import Curves, off_by
from hvd_trainer.report.facts import DEFAULT, DIVERGED, FITS, LINEAR, SCRIPT_END, Facts, Trial, number

NEAR = 1.3  # batches within this factor are compared by their rates


@dataclass(frozen=True)
class Said:
    """One recommendation.

    Args:
        what: batch, rate, warm-up, optimizer, ranks or backend.
        value: in a word or two.
        why: its evidence, as sentences.
    """

    what: str
    value: str
    why: str


def headline(facts: Facts) -> str:
    """The recommendation in one sentence.

    Example:
        >>> headline(Facts("a.py", "loss<=1", None, False, (), {}))
        'No trial was run.'
    """
    if not facts.trials:
        return "No trial was run."
    ranks, best = facts.ranks[0], _recommended(facts)
    outcomes = [trial.outcome for trial in facts.on(ranks)]
    missed = f"None of {len(outcomes)} trials on {_ranks(ranks)} came" if len(outcomes) > 1 else f"The only trial on {_ranks(ranks)} did not come"
    none = f"{missed} to {facts.target}: {_advice(outcomes)}."
    if best is None:
        return none
    said = (
        f"On {_ranks(best.ranks)}, batch {best.global_batch:,} with peak rate {best.peak_lr:.3g} and {best.optimizer} comes to {facts.target} in "
        f"{show_duration(facts.seconds(best))} of training: {show_count(facts.steps(best), 'step')}, {show_count(_samples(facts, best), 'sample')}."
    )  # fmt: skip
    fewer = [facts.best(number) for number in facts.ranks if number < best.ranks]
    as_good = [trial for trial in fewer if trial is not None and facts.seconds(trial) <= facts.seconds(best)]
    if as_good:
        fastest = min(as_good, key=facts.seconds)
        said += f" {_ranks(fastest.ranks).capitalize()} would do: {show_duration(facts.seconds(fastest))} with batch {fastest.global_batch:,}."
    return said if best.ranks == ranks else f"{said} {none}"


def _recommended(facts: Facts) -> Optional[Trial]:
    """The best on the largest number of ranks on which a trial came to the target: what recommended.yaml has."""
    return next((trial for trial in map(facts.best, facts.ranks) if trial is not None), None)


def _samples(facts: Facts, trial: Trial) -> int:
    """To the target, the median over the seeds that came to it: what belongs to `facts.seconds`."""
    return round(statistics.median([other.samples for other in facts.seeds_of(trial) if other.is_met] or [trial.samples]))


def _advice(outcomes: Sequence[str]) -> str:
    """What to change where no trial came to the target: a larger budget helps only those that a cap ended."""
    who = "all" if len(outcomes) > 1 else "it"
    ways = {SCRIPT_END: f"{who} ended with the script: more epochs, or a target that is nearer", DIVERGED: f"{who} diverged: a lower rate in the script"}
    nearer = "a larger budget, or a target that is nearer"
    return ways.get(outcomes[0], nearer) if len(set(outcomes)) == 1 else nearer


def recommendations(facts: Facts, curves: Curves) -> list[Said]:
    """Batch, rate, warm-up, optimizer, number of ranks and backend, each with its evidence.

    Returns:
        Nothing where no trial came to the target.
    """
    best = _recommended(facts)
    if best is None:
        return []
    return [
        Said("global batch", f"{best.global_batch:,}", _batch(facts, curves, best)),
        Said("peak rate", f"{best.peak_lr:.3g}", _rate(facts, curves, best)),
        Said("warm-up", "unknown" if best.warmup_steps is None else show_count(round(best.warmup_steps), "step"), _warmup(facts, best)),
        Said("optimizer", best.optimizer, _optimizer(facts, best)),
        _number_of_ranks(facts, curves),
        _backend(facts),
    ]


def _batch(facts: Facts, curves: Curves, best: Trial) -> str:
    mine, batch = facts.on(best.ranks), best.global_batch or 1
    seeds = len(facts.seeds_of(best))
    over = f", by the median over {seeds} seeds" if seeds > 1 else "; one seed each, no spread known"
    said = [f"Soonest of {len(mine)} trials on {_ranks(best.ranks)}{over}." if len(mine) > 1 else f"The only trial on {_ranks(best.ranks)}: no spread known."]
    fit, known = curves.fit, curves.best_known
    if fit is not None and not fit.reason:
        said.append(
            f"The critical batch is {fit.critical_batch:.0f} samples (95 %: {fit.low:.0f} to {fit.high:.0f}; hyperbola through {len(fit.factors)} "
            f"batches, worst point {fit.worst:.2f} times off)."
        )  # fmt: skip
    elif fit is not None:
        said.append(f"The critical batch is undetermined by the trials: {fit.reason}.")
    else:
        said.append(f"No hyperbola was fitted: {curves.why_no_fit}.")
    if curves.noise is not None and curves.noise.value is not None:
        interval = f" (95 %: {curves.noise.low:.0f} to {curves.noise.high:.0f})" if curves.noise.low and curves.noise.high else ""
        said.append(f"The gradient noise scale of one run at batch {curves.noise.global_batch:,} is {curves.noise.value:.0f} samples{interval}.")
        off = off_by(curves)
        said += [f"Steps predicted from it against the trials' fewest: {off}."] if off else []
    if curves.critical_batch is not None and known is not None:
        fewer = 1 - known.steps(2 * batch) / known.steps(batch)
        said.append(f"Twice this batch would save {100 * fewer:.0f} % of the steps for {100 * (1 - 2 * fewer):.0f} % more samples.")
    tried = sorted({trial.global_batch for trial in mine if trial.global_batch})
    if len(tried) > 1 and batch in (tried[0], tried[-1]):
        said.append("It is at the edge of what was tried: a better one may lie beyond.")
    return " ".join(said)


def _rate(facts: Facts, curves: Curves, best: Trial) -> str:
    rate, batch = best.peak_lr or math.nan, best.global_batch or 1
    near = [
        trial for trial in facts.trials
        if trial is not best and trial.optimizer == best.optimizer and trial.global_batch and trial.peak_lr
        and abs(math.log(trial.global_batch / batch)) <= math.log(NEAR) and abs(math.log(trial.peak_lr / rate)) > 0.05
    ]  # fmt: skip
    said = []
    for side, chosen in (("lower", [t for t in near if t.peak_lr < rate]), ("higher", [t for t in near if t.peak_lr > rate])):
        nearest = min(chosen, key=lambda trial: abs(math.log(trial.peak_lr / rate)), default=None)
        if nearest is None:
            said.append(f"No {side} rate was tried within {NEAR:g} times this batch.")
        elif nearest.is_met:
            said.append(f"The nearest {side} rate, {nearest.peak_lr:.3g} at batch {nearest.global_batch:,}, took {nearest.steps / best.steps:.2f} times the steps.")
        else:
            said.append(f"The nearest {side} rate, {nearest.peak_lr:.3g} at batch {nearest.global_batch:,}: {nearest.outcome}.")
    tested, at = (number(facts.part("lr_range").get(name)) for name in ("suggestion", "global_batch"))
    scale = curves.critical_batch
    if tested and at:
        said.append(f"The range test at batch {at:,.0f} suggests {tested:.3g}" + (f", which the noise rule brings to {tested / gain(scale, batch, at):.3g} here." if scale is not None else "."))
        broken = number(facts.part("lr_range").get("highest_rate"))
        said += [f"In that test training broke at {broken:.3g}."] if broken else []
    else:
        said.append("No range test of rates was run.")
    return " ".join(said)


def _warmup(facts: Facts, best: Trial) -> str:
    tried = [trial for trial in facts.trials if trial.warmup_steps is not None and trial.global_batch]
    in_steps = {round(trial.warmup_steps or 0) for trial in tried}
    in_samples = [(trial.warmup_steps or 0) * (trial.global_batch or 1) for trial in tried]
    if best.warmup_steps is None:
        return "The script does not say how long it warms up."
    share = "None" if best.warmup_steps == 0 else f"{100 * best.warmup_steps / best.steps:.0f} % of the steps to the target"
    # A script's own warm-up is the same number of steps or of samples at each batch, but for what rounding to steps costs.
    if len(in_steps) < 2 or max(in_samples) <= 1.05 * min(in_samples):
        return f"{share}: the script's own; no other was tried."
    none = [trial for trial in facts.trials if trial.is_met and trial.warmup_steps == 0 and trial.ranks == best.ranks and trial is not best]
    without = min(none, key=lambda trial: trial.seconds, default=None)
    tail = f" The best trial without a warm-up took {without.seconds / best.seconds:.2f} times as long." if without else " None without a warm-up came to the target."
    return f"{share}, chosen with batch and rate by the search.{'' if best.warmup_steps == 0 else tail}"


def _optimizer(facts: Facts, best: Trial) -> str:
    names = sorted({trial.optimizer for trial in facts.on(best.ranks) if trial.optimizer} - {best.optimizer})
    if not names:
        return "The script's own; no other was tried (--optimizers sgd,adamw,lars,lamb)."
    said = []
    for name in names:
        mine = [trial for trial in facts.on(best.ranks) if trial.optimizer == name]
        fastest = min(mine, key=lambda trial: trial.seconds)
        trials = show_count(len(mine), "trial")
        said.append(f"{name}: {fastest.seconds / best.seconds:.2f} times as long at best ({trials})." if fastest.is_met else f"{name}: never there ({trials}).")
    return " ".join(said)


def _number_of_ranks(facts: Facts, curves: Curves) -> Said:
    bests = sorted((trial for trial in map(facts.best, facts.ranks) if trial), key=lambda trial: trial.ranks)
    said = []
    for fewer, more in zip(bests, bests[1:]):
        gained = facts.seconds(fewer) / facts.seconds(more)
        caution = speed_up_caution(gained, more.ranks / fewer.ranks, [len(facts.seeds_of(trial)) for trial in (fewer, more)])
        said.append(f"{_ranks(more.ranks)} are {gained:.2f} times as fast as {fewer.ranks} (measured, each with its own best batch{caution and f'; {caution}'}).")
    points = curves.policies(facts).get(RECOMMENDED, [])
    if not points:
        said.append(f"More ranks are not predicted: {curves.why_no_time}.")
        return Said("ranks", str(bests[-1].ranks), " ".join(said))
    if curves.fit is not None and curves.best_known is curves.fit and curves.fit.reason:
        said.append("What follows is rough, for the critical batch is undetermined.")
    worth = worth_it([point for point in points if point.label != EXTRAPOLATED])  # nobody should buy machines for a hint
    following = next((point for point in points if point.ranks >= 2 * worth.ranks), None)
    if worth.ranks == min(point.ranks for point in points):
        said.append(f"A doubling is worth it where it gains {WORTH:g} times; none does, even with the batch chosen anew.")
    else:
        label = "" if worth.label == MEASURED else f" ({worth.label})"
        said.append(f"Up to {_ranks(worth.ranks)}{label} every doubling gains {WORTH:g} times or more, with the batch chosen anew for each.")
    if following is not None:
        unsure = ": extrapolated, no more than a hint" if following.label == EXTRAPOLATED else ""
        said.append(f"{following.ranks} ranks would gain {worth.seconds / following.seconds:.2f} times ({following.label}{unsure}), with batch {following.global_batch:,}.")
    return Said("ranks", f"{worth.ranks}", " ".join(said))


def _backend(facts: Facts) -> Said:
    known = [(str(entry.get("backend") or entry.get("name") or entry.get("engine") or "?"), number(entry.get("step_s") or entry.get("seconds"))) for entry in facts.entries("backends")]
    timed = sorted((seconds, name) for name, seconds in known if seconds)
    if not timed:
        return Said("backend", "the script's", "Backends were not compared (--backends).")
    rest = ", ".join(f"{name} takes {seconds / timed[0][0]:.2f} times as long" for seconds, name in timed[1:])
    silent = [f"{name} does not start" for name, seconds in known if not seconds]
    others = "; ".join(part for part in (rest, *silent) if part) or "no other was tried"
    place = f"The fastest step of {len(timed)}" if len(timed) > 1 else "The only one that was timed"
    return Said("backend", timed[0][1], f"{place}: {1e3 * timed[0][0]:.3g} ms a step; {others}.")


@dataclass(frozen=True)
class Lost:
    """What another way to choose the batch would cost.

    Args:
        ranks, way, global_batch, peak_lr: what it is; None: not known.
        outcome: in words.
        seconds: to the target; None: it does not come there, or nobody knows.
        times: the best's; None: as seconds.
        label: measured, predicted, extrapolated, or "" with the reason in `outcome`.
        trials: that the seconds rest on, where they were measured.
    """

    ranks: int
    way: str
    global_batch: Optional[int]
    peak_lr: Optional[float]
    outcome: str
    seconds: Optional[float]
    times: Optional[float]
    label: str
    trials: int = 0


def what_is_lost(facts: Facts, curves: Curves) -> list[Lost]:
    """For each number of ranks: the best, the script's default, the linear rule, and N x what fits in memory; always all four."""
    found = []
    for ranks in facts.ranks:
        best = facts.best(ranks)
        if best is None:
            found.append(Lost(ranks, "recommended", None, None, "no trial came to the target", None, None, ""))
        else:
            found.append(Lost(ranks, "recommended", best.global_batch, best.peak_lr, best.outcome, facts.seconds(best), 1.0, MEASURED, len(facts.seeds_of(best))))
        found += [_lost(facts, curves, label, ranks, best) for label in (DEFAULT, LINEAR, FITS)]
    return found


def _lost(facts: Facts, curves: Curves, label: str, ranks: int, best: Optional[Trial]) -> Lost:
    trial = facts.row(label, ranks)
    way = policies.FITS if label == FITS else label
    if trial is not None:
        seconds = facts.seconds(trial)
        reached = math.isfinite(seconds)
        times = seconds / facts.seconds(best) if best and reached else None
        others = {t.outcome: t for t in facts.on(ranks) if t.label == label and t is not trial and not t.is_met}
        also = "".join(f"; at batch {other.global_batch or 0:,} {outcome}" for outcome, other in others.items())
        seldom = "" if reached else ", with fewer than half of the seeds"
        outcome = trial.outcome + seldom + also if trial.is_met else f"{trial.outcome} after {show_count(trial.steps, 'step')}" + (f" ({trial.reason})" if trial.reason else "")
        return Lost(ranks, way, trial.global_batch, trial.peak_lr, outcome, seconds if reached else None, times, MEASURED, len(facts.seeds_of(trial)))
    base, rate = number(facts.start.get("global_batch")), number(facts.start.get("peak_lr"))
    micro = facts.micro_batch(ranks)
    if curves.task is None or base is None or label == FITS and micro is None:
        why = "what fits was not measured: --micro-batch" if label == FITS and micro is None else curves.why_no_time or "the script's own batch is not known"
        return Lost(ranks, way, None, None, f"not measured, and not predicted ({why})", None, None, "")
    usual = curves.task.usual_ways(ranks, int(base), micro)
    point = curves.task.point(ranks, int(base)) if label == DEFAULT else usual[way]
    assert point is not None  # only what fits may be unknown, see above
    batch = point.global_batch
    words = "not run; steps from the curve, if its rate were as good as the best"
    scale, peak = curves.critical_batch, None if rate is None else rate * batch / base
    broke = min((t.peak_lr for t in facts.trials if t.outcome == DIVERGED and t.peak_lr and t.optimizer == curves.optimizer), default=None)
    if label != DEFAULT and peak and broke and peak >= broke:
        words += f"; it likely diverges, as rate {broke:.3g} did"
    elif label != DEFAULT and scale is not None and linear_excess(batch, base, scale) > 2:
        words += f"; the linear rule asks for {linear_excess(batch, base, scale):.1f} times the noise rule's rate, and likely diverges"
    return Lost(ranks, way, batch, peak, words, point.seconds, point.seconds / facts.seconds(best) if best else None, point.label)


def _ranks(ranks: int) -> str:
    return show_count(ranks, "rank")
