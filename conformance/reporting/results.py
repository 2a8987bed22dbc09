"""From decisions to results."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from refsampler.clauses import ClauseId, Level
from refsampler.conformance.commands.verdict_table import failure_lines
from refsampler.conformance.decisions import Decision, exit_code
from refsampler.conformance.expectations import as_expected
from refsampler.conformance.results import NOT_SELECTED, ClauseResult
from refsampler.conformance.verdict import ExitCode, LogE, Status

__all__ = ["clause_result", "clause_results"]


def clause_result(decision: Decision, replay_options: str = "", script: str = "") -> ClauseResult:
    """Return a decision as it is shown.

    Args:
        decision: about one clause.
        replay_options: added to the command that replays its case.
        script: that shows a failure again; empty without one.

    """
    verdict = decision.verdict
    if verdict.replay:
        replay = f"{verdict.replay}{replay_options}"
        decision = replace(decision, verdict=replace(verdict, replay=replay))
    text = "\n".join(failure_lines(decision))
    text = text or f"{verdict.status.name}: {decision.reason or verdict.effect}".rstrip(": ")
    text += f"\nscript    python {shlex.quote(script)}" if script else ""
    unsupported = verdict.status is Status.UNSUPPORTED
    return ClauseResult(
        clause=verdict.clause,
        status=verdict.status,
        must=decision.level is Level.MUST,
        expected=decision.reason if as_expected(decision) else "",
        needed=unsupported and exit_code((decision,), ()) == ExitCode.INCONCLUSIVE,
        text=text,
        log_e=verdict.certainty.log_e if isinstance(verdict.certainty, LogE) else None,
        draws=verdict.draws,
        detectable="; ".join(
            # Never rounded up to certainty.
            f"{one.bias} with probability >= {min(one.probability, 0.999999):.6g}"
            for one in verdict.would_see
        ),
        seconds=verdict.seconds,
    )


def clause_results(
    decisions: Sequence[Decision],
    selected: int,
    replay_options: str = "",
    scripts: Mapping[ClauseId, str] = MappingProxyType({}),
) -> tuple[ClauseResult, ...]:
    """Return the results of a run.

    Args:
        decisions: those about selected clauses first, as `decide` gives them.
        selected: how many clauses were.
        replay_options: added to the commands that replay a case.
        scripts: clause -> the script that shows its failure again.

    """
    results = tuple(
        clause_result(one, replay_options, scripts.get(one.verdict.clause, "")) for one in decisions
    )
    return (*results[:selected], _not_selected(results[selected:]))


def _not_selected(broken: tuple[ClauseResult, ...]) -> ClauseResult:
    """Return one result for the clauses that the cases broke although nobody asked for them."""
    must = any(one.must for one in broken)
    expected = {one.expected for one in broken}
    return ClauseResult(
        clause=NOT_SELECTED,
        status=Status.FAIL if broken else Status.PASS,
        must=must or not broken,
        needed=False,
        expected="" if "" in expected else "; ".join(sorted(expected)),
        text="\n".join(one.text for one in broken) or "PASS",
        log_e=None,
        draws=sum(one.draws for one in broken),
        detectable="",
        seconds=sum(one.seconds for one in broken),
    )
