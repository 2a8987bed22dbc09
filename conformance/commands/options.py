"""Options that several commands share, and what they mean."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import click

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import select
from refsampler.conformance.checks.law import PROFILES
from refsampler.conformance.expectations import (
    Expectation,
    ExpectationsError,
    read_expectations,
)
from refsampler.conformance.extend import with_recorded
from refsampler.conformance.plan import Plan, make_plan
from refsampler.conformance.recorded import RecordingError

__all__ = [
    "expectations_option",
    "glob_option",
    "known_failures",
    "logits_option",
    "planned",
    "profile_option",
    "run_seed_of",
    "seed_option",
    "time_budget_option",
    "with_logits",
]

profile_option = click.option(
    "--profile", type=click.Choice(list(PROFILES)), default="quick", show_default=True
)
glob_option = click.option(
    "--clause", "glob", default="*", help="Only clauses that match, as top-p.*"
)
seed_option = click.option(
    "--seed", type=click.IntRange(0), help="Run seed; fresh and printed without."
)
time_budget_option = click.option(
    "--time-budget",
    type=click.FloatRange(min=0),
    help="Seconds after which no new case starts; what was not reached is INCONCLUSIVE. Laws are"
    " sized for their share of it.",
)
logits_option = click.option(
    "--logits",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="safetensors file of recorded logits, tensors [rows, vocab]: each row becomes a case.",
)
expectations_option = click.option(
    "--expectations",
    "expectations_file",
    type=click.Path(path_type=Path),
    help="TOML file of known failures, [[expect]] clause, status = 'fail', reason, and as you like"
    " backend (a shell pattern) and issue. Expected failures leave the exit status at 0; stale"
    " entries are reported.",
)


def run_seed_of(seed: int | None) -> int:
    """Return the run seed given, or a fresh one."""
    return secrets.randbits(31) if seed is None else seed


def planned(
    capabilities: Capabilities,
    profile: str,
    glob: str,
    run_seed: int,
    time_budget: float | None,
    free_bytes: int | None = None,
    before_cases: Callable[[], None] = lambda: None,
) -> Plan:
    """Plan a run, or end the command with status 2 if no clause matches."""
    if not select(glob):
        raise click.BadParameter(f"no clause matches {glob!r}", param_hint="--clause")
    return make_plan(
        capabilities,
        profile=profile,
        glob=glob,
        run_seed=run_seed,
        time_budget=time_budget,
        free_bytes=free_bytes,
        before_cases=before_cases,
    )


def with_logits(made: Plan, logits: Path | None) -> Plan:
    """Add the recorded cases, or end the command with status 2."""
    try:
        return made if logits is None else with_recorded(made, logits)
    except RecordingError as error:
        raise click.BadParameter(str(error), param_hint="--logits") from error


def known_failures(path: Path | None, *, update: bool) -> tuple[Expectation, ...]:
    """Read the file, or end the command with status 2; a file to be updated need not exist."""
    if path is None:
        if update:
            raise click.UsageError("--update-expectations needs --expectations FILE")
        return ()
    if update and not path.exists():
        return ()
    try:
        return read_expectations(path)
    except (ExpectationsError, OSError) as error:
        raise click.BadParameter(str(error), param_hint="--expectations") from error
