"""The report page as data: everything that the template shows, made from one stored run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from refsampler.clauses import Level
from refsampler.conformance.evidence.budget import TOTAL
from refsampler.conformance.records import CaseRecord, PairsRecord, TailRecord, VerdictRecord
from refsampler.conformance.reporting.costs import Cost, costs
from refsampler.conformance.reporting.failures import Failure, failures
from refsampler.conformance.reporting.health import Health
from refsampler.conformance.reporting.law_views import LawView, law_views
from refsampler.conformance.reporting.stored import AskedRecord, StoredRun
from refsampler.conformance.reporting.stored_law import stored_law
from refsampler.conformance.verdict import ExitCode, Status

__all__ = ["ClauseRow", "Fact", "Group", "NotTested", "Page", "page"]

_SURE: Final = 1 - 1e-6
_CASES: Final = 12
_LEVELS: Final = {1: "1 (kernel)", 2: "2 (batch sampler)", 3: "3 (engine)"}
_TONES: Final = {ExitCode.CONFORMS: "good", ExitCode.DOES_NOT: "bad"}
_NOT_TESTED: Final = (
    (Status.INHERITED, "Inherited", "done by the reference pipeline, hence not credited"),
    (Status.UNSUPPORTED, "Unsupported", "the backend does not declare what the clause needs"),
    (Status.NOT_RUN, "Not run", "this machine or this run could not try it"),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and what it is."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ClauseRow:
    """One clause.

    Attributes:
        clause: its id.
        level: MUST or SHOULD.
        status: what was found.
        expected: whether the failure was expected.
        cases: judged.
        draws: that went into it.
        note: figures, or the reason of the status.
        ids: of its first cases.
        more: cases beyond those.

    """

    clause: str
    level: Level
    status: Status
    expected: bool
    cases: int
    draws: int
    note: str
    ids: tuple[str, ...]
    more: int


@dataclass(frozen=True, slots=True)
class Group:
    """A row of the map: the clauses of one group."""

    name: str
    clauses: tuple[ClauseRow, ...]


@dataclass(frozen=True, slots=True)
class NotTested:
    """Clauses that say nothing about the backend, for one kind of reason."""

    name: str
    meaning: str
    clauses: tuple[VerdictRecord, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that the page shows.

    Attributes:
        backend: its name, as it gives it.
        version: likewise.
        headline: the verdict line.
        tone: "good", "bad" or "open", for the colour of that line.
        error: of the harness, or empty.
        tested: what ran, where.
        promises: bounds, tolerances and what would have been seen.
        not_tested: by reason; empty ones are left out.
        groups: the map.
        failures: worst first.
        laws: each with its plots.
        tails: grades.
        detectable: [clause, biases that would have been seen].
        health: of the suite.
        cost: by check.
        missing: why there are no plots; empty if there are.

    """

    backend: str
    version: str
    headline: str
    tone: str
    error: str
    tested: tuple[Fact, ...]
    promises: tuple[Fact, ...]
    not_tested: tuple[NotTested, ...]
    groups: tuple[Group, ...]
    failures: tuple[Failure, ...]
    laws: tuple[LawView, ...]
    tails: tuple[TailRecord, ...]
    detectable: tuple[tuple[str, tuple[str, ...]], ...]
    health: Health
    cost: Cost
    missing: str = ""


def page(run: StoredRun, health: Health, *, plots: bool) -> Page:
    """Make the page of a run.

    Args:
        run: stored.
        health: of the suite.
        plots: whether to draw them.

    Raises:
        ImportError: plots are wanted, and matplotlib is not installed.

    """
    stored = tuple(
        stored_law(one, run.header.capabilities)
        for one in run.laws
        if run.header.capabilities is not None
    )
    detectable = tuple(
        (one.clause, biases)
        for one in run.verdicts
        if (biases := tuple(bias for bias, chance in one.would_see if chance >= _SURE))
    )
    return Page(
        backend=run.header.backend,
        version=run.header.backend_version,
        headline=_headline(run),
        tone="open" if run.footer is None else _TONES.get(run.footer.exit_code, "open"),
        error="" if run.footer is None else run.footer.error or "",
        tested=tuple(_tested(run)),
        promises=tuple(_promises(run)),
        not_tested=tuple(
            NotTested(name, meaning, found)
            for status, name, meaning in _NOT_TESTED
            if (found := run.of_status(status))
        ),
        groups=tuple(_groups(run)),
        failures=failures(run, stored),
        laws=law_views(run, stored, plots=plots),
        tails=run.tails,
        detectable=detectable,
        health=health,
        cost=costs(run),
    )


def _headline(run: StoredRun) -> str:
    if run.footer is not None:
        return run.footer.headline
    return "the run did not end: no verdicts, only the cases that were finished"


def _tested(run: StoredRun) -> Iterator[Fact]:
    header = run.header
    yield Fact("backend", f"{header.backend} {header.backend_version}")
    yield Fact("opened as", header.spec)
    yield Fact("adapter level", _LEVELS.get(header.level, str(header.level)))
    yield Fact("device", header.device)
    yield Fact("semantics", header.semantics)
    yield Fact("contract", f"{header.contract}, sha256 {header.contract_digest[:12]}")
    at = f", commit {header.revision}" if header.revision else ""
    yield Fact("refsampler", f"{header.refsampler}{at}")
    yield Fact("torch, Python", f"{header.torch}, {header.python}")
    yield Fact("machine", header.machine)
    only = "" if header.clauses == "*" else f", clauses {header.clauses} only"
    yield Fact("profile", f"{header.profile}{only}")
    yield Fact("run seed", str(header.run_seed))
    if header.time_budget is not None:
        yield Fact("time budget", f"{header.time_budget:g} s")
    if header.shard is not None:
        yield Fact("shard", f"{header.shard[0]} of {header.shard[1]}")
    yield Fact("started", header.started)
    if run.note:
        yield Fact("note", run.note)


def _promises(run: StoredRun) -> Iterator[Fact]:
    header = run.header
    bound = f"at most {TOTAL:.0e} that a right backend is reported FAIL for any clause"
    if run.of_status(Status.FAIL):
        bound += "; beside a broken clause another one may be named for the same wrong id"
    yield Fact("false alarm, whole run", bound)
    if header.charge > 0:
        yield Fact("of which near-certain rows", f"at most {header.charge:.1e}")
    yield Fact("tolerance delta", f"{header.delta:g} in total variation, as the backend declares")
    yield Fact("floor", f"ids of probability below {header.floor:g} are judged by draw.tail")
    yield Fact("tail grade", _grade(run.tails))
    uppers = [one.tv_upper for one in run.laws if one.tv_upper is not None]
    if uppers:
        words = f"TV at most {min(uppers):.2g} to {max(uppers):.2g}, by law, each at 1 - 1e-6"
        yield Fact("distance from the exact law", words)
    law = run.verdict("draw.law")
    seen = [] if law is None else [bias for bias, chance in law.would_see if chance >= _SURE]
    heat = [bias for bias in seen if bias.startswith("temperature")]
    if seen:
        first = f"{', '.join(heat)} and " if heat else ""
        rest = f"{len(seen) - len(heat)} other biases"
        yield Fact("would have been seen", f"{first}{rest}, with probability 1 - 1e-6")


def _grade(tails: Sequence[TailRecord]) -> str:
    reached = [one.grade for one in tails if one.reached]
    return f"{min(reached):.0e}" if reached else "none reached in this run"


def _groups(run: StoredRun) -> Iterator[Group]:
    ids: dict[str, dict[str, None]] = {}
    for record in run.asked:
        for clause in _clauses(record):
            ids.setdefault(clause, {})[record.id] = None
    names = dict.fromkeys(one.clause.partition(".")[0] for one in run.verdicts)
    for name in names:
        inside = [one for one in run.verdicts if one.clause.partition(".")[0] == name]
        yield Group(name, tuple(_row(run, one, tuple(ids.get(one.clause, ()))) for one in inside))


def _clauses(record: AskedRecord) -> tuple[str, ...]:
    """Return the clauses that a record is about."""
    match record:
        case CaseRecord():
            return record.clauses
        case PairsRecord():
            return (record.clause,)
        case TailRecord():
            return ("draw.tail", "draw.resolution")
        case _:
            return ("draw.law",)


def _row(run: StoredRun, one: VerdictRecord, ids: tuple[str, ...]) -> ClauseRow:
    return ClauseRow(
        clause=one.clause,
        level=run.level(one.clause),
        status=Status(one.status),
        expected=one.expected is not None and one.status == Status.FAIL,
        cases=one.cases,
        draws=one.draws,
        note=one.reason,
        ids=ids[:_CASES],
        more=max(len(ids) - _CASES, 0),
    )
