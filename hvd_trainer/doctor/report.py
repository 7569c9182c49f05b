"""The findings as text for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json

from hvd_trainer.doctor.finding import Finding


def as_text(findings: list[Finding]) -> str:
    """One block per finding; the fix stands under it."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        first, *rest = finding.text.splitlines()
        lines.append(f"{finding.state:4}  {finding.name:{width}}  {first}")
        lines += [" " * (width + 8) + line for line in rest]
        if finding.fix:
            lines.append(" " * (width + 8) + f"fix: {finding.fix}")
    return "\n".join(lines)


def as_json(findings: list[Finding]) -> str:
    """A list of objects with `name`, `state`, `text`, `fix` and `data`."""
    return json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1)
