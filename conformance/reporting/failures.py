"""The failures of a stored run, worst first, in the order expected, seen, how sure, case, replay."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from refsampler.clauses import ClauseId, Level, UnknownClauseError, get
from refsampler.conformance.case import Case, decode_case
from refsampler.conformance.records import VerdictRecord
from refsampler.conformance.reporting.shapes import shape_of, shape_of_all
from refsampler.conformance.reporting.stored import StoredRun
from refsampler.conformance.reporting.stored_law import StoredLaw
from refsampler.conformance.reporting.streams import shared
from refsampler.conformance.verdict import Status

__all__ = ["Failure", "certainty", "failures"]

_SHAPES: Final = 5
_CASE_CHARACTERS: Final = 4000
_LAW: Final = "draw.law"


@dataclass(frozen=True, slots=True)
class Failure:
    """One clause that failed.

    Attributes:
        clause: its id.
        level: MUST or SHOULD.
        text: of the contract; empty for a clause that this contract does not know.
        expected_because: why the failure is expected; empty where it is not.
        expected: in words.
        seen: in words.
        sure: how the decision was made.
        shapes: what the bias looks like, as descriptions.
        case: id of the smallest case, or empty.
        case_words: its size.
        case_json: the case, cut where it is long.
        replay: command.
        script: path of the script, relative to the report, or empty.

    """

    clause: str
    level: Level
    text: str
    expected_because: str
    expected: str
    seen: str
    sure: str
    shapes: tuple[str, ...]
    case: str
    case_words: str
    case_json: str
    replay: str
    script: str


def failures(run: StoredRun, laws: Sequence[StoredLaw]) -> tuple[Failure, ...]:
    """Return the failures: those that gate first, then the surer ones.

    Args:
        run: stored.
        laws: of the run, beside their counts.

    """
    failed = sorted(run.of_status(Status.FAIL), key=lambda one: _rank(run, one))
    return tuple(_failure(run, one, laws) for one in failed)


def _rank(run: StoredRun, one: VerdictRecord) -> tuple[bool, bool, float]:
    gates = run.level(one.clause) is Level.MUST
    if one.log_e is not None and one.log_threshold is not None:
        sure = one.log_e
    else:
        sure = -math.log(one.false_alarm) if one.false_alarm > 0 else math.inf
    return (one.expected is not None, not gates, -sure)


def certainty(one: VerdictRecord) -> str:
    """Return how sure a verdict is, in words."""
    if one.log_e is not None and one.log_threshold is not None:
        power, needed = one.log_e / math.log(10), one.log_threshold / math.log(10)
        return f"e-value 10^{power:.1f}, 10^{needed:.1f} needed"
    if one.false_alarm:
        return f"a right backend shows this with probability at most {one.false_alarm:.1e}"
    return "exact comparison"


def _failure(run: StoredRun, one: VerdictRecord, laws: Sequence[StoredLaw]) -> Failure:
    effect = one.effect or one.reason
    expected, _, seen = effect.removeprefix("expected ").partition("; seen ")
    case = _case(run, one.case)
    script = f"repro/{one.clause}-{one.case}.py"
    return Failure(
        clause=one.clause,
        level=run.level(one.clause),
        text=_text(one.clause),
        expected_because=one.reason.removeprefix("expected: ") if one.expected else "",
        expected=expected,
        seen=seen,
        sure=certainty(one),
        shapes=_shapes(run, one.clause, laws),
        case=one.case or "",
        case_words="" if case is None else _size(case[0]),
        case_json="" if case is None else _shortened(case[1]),
        replay=one.replay,
        script=script if (run.folder / script).is_file() else "",
    )


def _text(clause: str) -> str:
    try:
        return get(ClauseId(clause)).text
    except UnknownClauseError:
        return ""


def _case(run: StoredRun, case: str | None) -> tuple[Case, bytes] | None:
    for record in run.asked:
        if record.id == case:
            return decode_case(bytes(record.case)), bytes(record.case)
    return None


def _size(case: Case) -> str:
    rows = len(case.requests)
    steps = f", {len(case.steps)} steps" if case.steps else ""
    calls = f", {case.calls} calls" if case.calls > 1 else ""
    return f"{rows} {'row' if rows == 1 else 'rows'}, V = {case.logits.vocab:,}{steps}{calls}"


def _shortened(document: bytes) -> str:
    text = json.dumps(json.loads(document), indent=1)
    if len(text) <= _CASE_CHARACTERS:
        return text
    return f"{text[:_CASE_CHARACTERS]}\n... {len(text) - _CASE_CHARACTERS:,} characters more"


def _shapes(run: StoredRun, clause: str, laws: Sequence[StoredLaw]) -> tuple[str, ...]:
    if clause == _LAW:
        found = [(shape, one) for one in laws if (shape := shape_of(one)) is not None]
        found.sort(key=lambda pair: -pair[0].gain)
        joint = shape_of_all(laws) if len(laws) > 1 else None
        each = tuple(f"{shape.words} ({one.words})" for shape, one in found[:_SHAPES])
        return each if joint is None else (joint.words, *each)
    if clause.startswith("independence."):
        pairs = [one for one in run.pairs if one.clause == clause]
        words = [f"{words} ({one.pairing})" for one in pairs for words in shared(one)]
        return tuple(dict.fromkeys(words))[:_SHAPES]
    return ()
