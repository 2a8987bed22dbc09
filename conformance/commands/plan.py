"""``refsampler plan``: what a check would run, before anything is drawn."""

from __future__ import annotations

import time

import click

from refsampler.conformance.commands.opening import isolation_options, opened
from refsampler.conformance.commands.options import (
    glob_option,
    planned,
    profile_option,
    run_seed_of,
    seed_option,
    time_budget_option,
)
from refsampler.conformance.commands.verdict_table import plan_lines
from refsampler.conformance.costs import left_out, total_seconds

__all__ = ["plan"]


@click.command()
@click.argument("backend")
@profile_option
@glob_option
@seed_option
@time_budget_option
@isolation_options
def plan(
    backend: str,
    profile: str,
    glob: str,
    seed: int | None,
    time_budget: float | None,
    isolate: bool | None,
    timeout_s: float,
    memory_gib: float,
) -> None:
    """Say what a check of BACKEND runs, what it may cost and what it will see, before any draw."""
    run_seed = run_seed_of(seed)
    with opened(backend, run_seed, isolate, timeout_s, memory_gib) as subject:
        capabilities = subject.capabilities
    started = time.monotonic()
    made = planned(capabilities, profile, glob, run_seed, time_budget)
    for line in plan_lines(made, time.monotonic() - started):
        click.echo(line)
    click.echo(f"expected seconds, at the speed of the native sampler: {total_seconds(made):.0f}")
    if time_budget is not None:
        late = ", ".join(left_out(made, time_budget)) or "nothing"
        click.echo(f"not finished within {time_budget:g} s, hence INCONCLUSIVE: {late}")
    counts: dict[str, tuple[int, int]] = {}
    drawn_by = [(one.check, one.draws) for one in made.cases]
    drawn_by += [(one.check, one.draws) for one in made.laws]
    for one, drawn in drawn_by:
        name = f"{one.name} ({one.kind})"
        before = counts.get(name, (0, 0))
        counts[name] = (before[0] + 1, before[1] + drawn)
    for name, (cases, draws) in counts.items():
        click.echo(f"  {name:<34}{cases:>5} cases {draws:>12,} draws")
    for power in made.would_see:
        click.echo(f"  {power.bias:<42} seen with probability {power.probability:.6g}")
