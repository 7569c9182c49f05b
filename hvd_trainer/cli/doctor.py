"""`hvd-trainer doctor`: what is here, what is missing, what to do."""

from __future__ import annotations

import click

from hvd_trainer.doctor import checks, report


@click.command(short_help="Check torch, MPI and Horovod; say what is missing and how to get it.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Check torch, MPI and Horovod; the exit code is 1 when training cannot work."""
    findings = checks.run_all()
    click.echo(report.as_json(findings) if as_json else report.as_text(findings))
    context.exit(1 if any(finding.state == "fail" for finding in findings) else 0)
