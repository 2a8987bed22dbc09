"""How the verdicts of a run are shown: a table on a terminal, plain lines elsewhere, markdown."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence

import click

from refsampler.conformance.checks.mixed import stray_power
from refsampler.conformance.costs import group_seconds
from refsampler.conformance.decisions import Decision
from refsampler.conformance.evidence.budget import FIXED_DRAWS, RUN_CLAUSES
from refsampler.conformance.evidence.guarantees import smallest_detectable_tv
from refsampler.conformance.plan import LAW, Plan, sure
from refsampler.conformance.sequential import L1_ALPHA, SPLIT, coarse
from refsampler.conformance.verdict import LogE, Status

__all__ = ["evidence_lines", "failure_lines", "markdown", "plan_lines", "show"]

_MARKS = {
    Status.PASS: ("PASS", "green"),
    Status.FAIL: ("FAIL", "red"),
    Status.INCONCLUSIVE: ("INCONCLUSIVE", "yellow"),
    Status.INHERITED: ("INHERITED", "blue"),
    Status.UNSUPPORTED: ("UNSUPPORTED", "yellow"),
    Status.NOT_RUN: ("NOT_RUN", "bright_black"),
    Status.ERROR: ("ERROR", "magenta"),
}


def show(decisions: Sequence[Decision], headline: str) -> None:
    """Print the verdicts, then the failures, then the headline."""
    if sys.stdout.isatty():
        _show_table(decisions)
    else:
        for one in decisions:
            word = _MARKS[one.verdict.status][0]
            click.echo(f"{word:<12} {one.verdict.clause:<22} {_note(one)}".rstrip())
    for one in decisions:
        for line in failure_lines(one):
            click.echo(line)
    click.echo(headline)


def failure_lines(decision: Decision) -> tuple[str, ...]:
    """Return a failure in the order expected, seen, how sure, smallest case, replay."""
    verdict = decision.verdict
    if verdict.status is not Status.FAIL:
        return ()
    lines = [
        f"FAIL {verdict.clause}{' (expected)' if verdict.expected else ''}",
        f"  expected  {decision.expected}",
        f"  seen      {decision.seen}",
        f"  sure      {_certainty(decision)}",
    ]
    if verdict.case is not None:
        lines += [f"  smallest  case {verdict.case}", f"  replay    {verdict.replay}"]
    return tuple(lines)


def _certainty(decision: Decision) -> str:
    certainty = decision.verdict.certainty
    if isinstance(certainty, LogE):
        power = certainty.log_e / math.log(10)
        needed = certainty.log_threshold / math.log(10)
        return f"e-value 10^{power:.1f}, 10^{needed:.1f} needed"
    if certainty.false_alarm:
        return f"a right backend shows this with probability at most {certainty.false_alarm:.1e}"
    return "exact comparison"


def markdown(decisions: Sequence[Decision], title: str, headline: str) -> str:
    """Return the verdicts as a markdown page."""
    lines = [f"# {title}", "", headline, "", "| clause | level | status | cases | draws | note |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for one in decisions:
        verdict = one.verdict
        note = (one.reason if verdict.expected else verdict.effect or one.reason).replace(
            "|", r"\|"
        )
        word = _MARKS[verdict.status][0]
        lines.append(
            f"| `{verdict.clause}` | {one.level} | {word} | {one.cases} | {verdict.draws} | {note} |"
        )
    failures = [line for one in decisions for line in failure_lines(one)]
    if failures:
        lines += ["", "## Failures", "", "```", *failures, "```"]
    return "\n".join(lines) + "\n"


def plan_lines(plan: Plan, seconds: float | None = None) -> tuple[str, ...]:
    """Return what will run, what it may cost and what it will see."""
    owned = sum(stands.status is None for _, stands in plan.standings)
    checks = len(group_seconds(plan))
    seen = ", ".join(power.bias for power in sure(plan))
    capabilities = plan.capabilities
    lines = [
        (
            f"{capabilities.name} {capabilities.version} on {capabilities.device}: level "
            f"{capabilities.level}, semantics {capabilities.semantics.profile}, "
            f"delta {capabilities.delta:g}, floor {capabilities.floor:g}"
        ),
        (
            f"clauses {len(plan.standings)} ({owned} owned)   checks {checks}   cases "
            f"{len(plan.cases)} + {len(plan.laws) + len(plan.mixed)} laws + {len(plan.sequential.cases)} tails and "
            f"pairings   draws {plan.draws:,}   run seed "
            f"{plan.run_seed}"
        ),
        (
            f"false alarm: near-certain rows at most {plan.charge:.1e}, one look at distances and "
            f"distinct ids {FIXED_DRAWS:.1e}, {_shares()}; whole run at most 1e-9"
        ),
    ]
    if plan.laws:
        lines.append(f"draw.law would see with probability 1 - 1e-6: {seen or 'nothing'}")
        lines.append(f"draw.law looks once at distances: {_distances(plan)}")
        most = sum(one.draws - one.least for one in plan.laws)
        lines.append(
            f"draw.law draws {sum(one.least for one in plan.laws):,} ids, and up to {most:,} more "
            "until the biases that those do not show are refuted"
        )
    lines += [
        f"draw.law draws {one.case.calls} calls of {len(one.core)} rows, each of a law of its own; "
        f"{stray_power(one).bias}: an id that no right backend gives with probability "
        f"1 - {max(1 - stray_power(one).probability, 1e-15):.0e}"
        for one in plan.mixed
    ]
    lines += [f"not planned: draw.law {plan.without_mixed}"] if plan.without_mixed else []
    lines += evidence_lines(plan)
    if seconds is not None:
        lines += [f"  {name:<26}{spent:>8.1f} s expected" for name, spent in group_seconds(plan)]
        lines.append(f"planned in {seconds:.1f} s")
    return tuple(lines)


def _shares() -> str:
    """Return what each clause that evidence judges may cost in false alarms."""
    by_alpha: dict[float, list[str]] = {}
    for one in RUN_CLAUSES:
        by_alpha.setdefault(SPLIT.alpha(one.clause), []).append(one.clause)
    return ", ".join(f"{' '.join(names)} {alpha:.1e} each" for alpha, names in by_alpha.items())


def _distances(plan: Plan) -> str:
    """Return which total variation is sure to be seen, whatever its direction, on how many rows."""
    alpha_each = L1_ALPHA / len(plan.laws)
    seen = Counter(
        f"{smallest_detectable_tv(coarse(one.law).probs, one.least, alpha_each, delta=one.law.delta):.1g}"
        for one in plan.laws
    )
    return ", ".join(f"TV {size} on {rows} rows" for size, rows in sorted(seen.items()))


def evidence_lines(plan: Plan) -> list[str]:
    """Return what tails and independence would show, and what the profile leaves out."""
    clauses = [clause.id for clause, _ in plan.standings if clause.id != LAW]
    lines = [
        f"{clause} would see with probability 1 - 1e-6: {'; '.join(one.bias for one in powers)}"
        for clause in clauses
        if clause in plan.planned
        for powers in (plan.sequential.would_see(clause),)
        if powers
    ]
    left = [f"{one.clause} {one.words}" for one in (*plan.unplanned, *plan.sequential.unplanned)]
    return lines + ([f"not in the {plan.profile} profile: {'; '.join(left)}"] if left else [])


def _note(decision: Decision) -> str:
    verdict = decision.verdict
    if verdict.status is Status.PASS and verdict.expected is None:
        figure = f"; {decision.reason}" if decision.reason else ""
        return f"{decision.cases} cases, {verdict.draws:,} draws{figure}"
    return decision.reason or verdict.effect


def _show_table(decisions: Sequence[Decision]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("clause", "level", "status", "", box=box.SIMPLE_HEAD)
    for one in decisions:
        word, colour = _MARKS[one.verdict.status]
        status = Text(word, style=colour)
        table.add_row(one.verdict.clause, str(one.level), status, Text(_note(one)))
    Console().print(table)
