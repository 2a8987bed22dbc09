"""``refsampler smoke``: the questions that a first version gets wrong."""

from __future__ import annotations

import sys

import click

from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import all_checks
from refsampler.conformance.commands.opening import isolation_options, opened
from refsampler.conformance.commands.options import run_seed_of, seed_option
from refsampler.conformance.threads import one_thread
from refsampler.conformance.verdict import ExitCode

__all__ = ["smoke"]

_SMOKE = (
    ("shape and dtype of ids", ("layouts",), "output.form"),
    ("ids inside the vocabulary", ("layouts",), "output.range"),
    ("one-hot logits", ("relabelled-rows",), "relabel.equivariance"),
    ("same seed, same ids", ("seeds-again",), "seed.reproducible"),
)


@click.command()
@click.argument("backend")
@seed_option
@isolation_options
def smoke(
    backend: str, seed: int | None, isolate: bool | None, timeout_s: float, memory_gib: float
) -> None:
    """Ask BACKEND the four questions that a first version gets wrong, in seconds."""
    run_seed = run_seed_of(seed)
    checks = {one.name: one for one in all_checks()}
    failed = False
    with one_thread(), opened(backend, run_seed, isolate, timeout_s, memory_gib) as subject:
        capabilities = subject.capabilities
        click.echo(f"{capabilities.name} {capabilities.version} on {capabilities.device}")
        for words, names, clause in _SMOKE:
            cases = [
                (checks[name], case)
                for name in names
                for case in checks[name].cases(capabilities, run_seed)
            ]
            found = next(
                (
                    finding
                    for one, case in cases
                    for finding in judge_case(subject, one, case).findings
                    if finding.clause in (clause, "output.returns")
                ),
                None,
            )
            failed = failed or found is not None
            answer = "not declared" if not cases else "ok"
            if found is not None:
                answer = f"FAIL: expected {found.expected}; seen {found.seen}"
            click.echo(f"  {words:<28}{answer}")
    declared = sorted(str(one) for one in (*capabilities.features, *capabilities.folds))
    click.echo(f"  declares: {' '.join(declared)}")
    if failed:
        click.echo("smoke failed")
        sys.exit(ExitCode.DOES_NOT)
    click.echo(f"smoke passed. Next: refsampler check {backend}")
