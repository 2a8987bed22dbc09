"""From the plan, the decisions and the outcome of a run to lines of its report."""

from __future__ import annotations

import platform
from datetime import UTC, datetime

import msgspec
import torch

from refsampler import __version__
from refsampler.backends.protocol import Capabilities
from refsampler.clauses import load
from refsampler.conformance.decisions import Decision
from refsampler.conformance.finished import plan_digest
from refsampler.conformance.plan import Plan, alpha
from refsampler.conformance.records import Footer, Header, VerdictRecord
from refsampler.conformance.revision import revision
from refsampler.conformance.runner import Outcome
from refsampler.conformance.shards import EVERYTHING, Share
from refsampler.conformance.verdict import LogE

__all__ = ["Checked", "first_line", "footer_record", "header_record", "verdict_record"]


class Checked(msgspec.Struct, frozen=True):
    """A run, as `refsampler check --format json` gives it."""

    headline: str
    verdicts: tuple[VerdictRecord, ...]


def first_line(
    capabilities: Capabilities,
    spec: str,
    *,
    profile: str,
    glob: str,
    run_seed: int,
    time_budget: float | None,
    alpha: float,
    charge: float,
) -> Header:
    """Return what every report says first: what runs, where, against which contract, with which seed."""
    contract = load()
    return Header(
        backend=capabilities.name,
        backend_version=capabilities.version,
        spec=spec,
        level=capabilities.level,
        device=capabilities.device,
        semantics=capabilities.semantics.profile,
        delta=capabilities.delta,
        floor=capabilities.floor,
        refsampler=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        contract=contract.version,
        contract_digest=contract.digest,
        profile=profile,
        clauses=glob,
        run_seed=run_seed,
        time_budget=time_budget,
        alpha=alpha,
        charge=charge,
        planned={},
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        capabilities=capabilities,
        revision=revision(),
    )


def header_record(
    made: Plan, spec: str, time_budget: float | None, share: Share = EVERYTHING, jobs: int = 1
) -> Header:
    """Return the first line of a report of a plan."""
    line = first_line(
        made.capabilities,
        spec,
        profile=made.profile,
        glob=made.glob,
        run_seed=made.run_seed,
        time_budget=time_budget,
        alpha=alpha(made),
        charge=made.charge,
    )
    return msgspec.structs.replace(
        line,
        planned={str(clause): count for clause, count in made.planned.items()},
        plan=plan_digest(made),
        shard=None if share == EVERYTHING else (share.shard, share.count),
        free_bytes=made.free_bytes,
        jobs=jobs,
    )


def verdict_record(decision: Decision) -> VerdictRecord:
    """Return a decision as a line of a report."""
    verdict = decision.verdict
    evidence = verdict.certainty if isinstance(verdict.certainty, LogE) else None
    alarm = 0.0 if isinstance(verdict.certainty, LogE) else verdict.certainty.false_alarm
    return VerdictRecord(
        clause=verdict.clause,
        status=str(verdict.status),
        reason=decision.reason or verdict.effect,
        case=verdict.case,
        log_e=None if evidence is None else evidence.log_e,
        log_threshold=None if evidence is None else evidence.log_threshold,
        false_alarm=alarm,
        cases=decision.cases,
        draws=verdict.draws,
        would_see=tuple((one.bias, one.probability) for one in verdict.would_see),
        replay=verdict.replay,
        expected=None if verdict.expected is None else str(verdict.expected),
        effect=verdict.effect,
    )


def footer_record(outcome: Outcome, code: int, line: str) -> Footer:
    """Return the last line of a report: how the run ended."""
    return Footer(
        exit_code=code,
        headline=line,
        cases=outcome.cases,
        draws=outcome.draws,
        seconds=round(outcome.seconds, 3),
        error=outcome.errors[0] if outcome.errors else None,
    )
