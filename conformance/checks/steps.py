"""Steps drawn again and again: the joint law of the first two ids, and the law of the drafts.

Marginal laws of single ids do not show noise that draft, acceptance and recovery share, nor a second
id that forgot the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Kind
from refsampler.conformance.checks.processes import packed, unpacked
from refsampler.conformance.checks.step_laws import draft_law_case, joint_law_case
from refsampler.conformance.designed.steps import certain_case, draft_case, own_case, uneven_case
from refsampler.conformance.evidence.alternatives import Alternative
from refsampler.conformance.evidence.arrays import IntArray
from refsampler.conformance.evidence.budget import Budget
from refsampler.conformance.evidence.guarantees import Direction, directional_power
from refsampler.conformance.evidence.law import CaseEvidence, LawCase, LawProcess
from refsampler.conformance.evidence.pool import case_log_threshold
from refsampler.conformance.stepdraws import ImpossibleStepError, Source, StepDraws
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.verdict import Power

__all__ = ["CHECKS", "PlannedSteps", "StepProcess", "plan_steps"]

_LAW = ClauseId("spec.law")
_DRAFTS = ClauseId("spec.draft-law")

_ROWS: Final = 2048
_ENGINE_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class _Size:
    """One check.

    Attributes:
        name: of the check.
        clause: that is judged.
        source: of the drafts.
        draws: [profile, steps].

    """

    name: str
    clause: ClauseId
    source: Source
    draws: tuple[tuple[str, int], ...]

    def case(self, capabilities: Capabilities, profile: str) -> Case:
        """Return the step, as often as the profile draws it."""
        rows = _ENGINE_ROWS if capabilities.level == 3 else _ROWS
        calls = math.ceil(dict(self.draws)[profile] / rows)
        match self.source:
            case Source.OWN | Source.SEEDED:
                penalties = Feature.PENALTIES in capabilities.features
                case = own_case(self.clause, calls=calls, penalties=penalties)
            case Source.GIVEN:
                case = uneven_case(self.clause, calls=calls)
            case Source.CERTAIN:
                case = certain_case(self.clause, calls=calls)
            case Source.DRAFTS:
                case = draft_case(self.clause, calls=calls)
        return case

    def applies(self, capabilities: Capabilities) -> bool:
        """Whether a backend can be asked."""
        needed = {Feature.SPECULATIVE}
        needed |= {Feature.DRAFT} if self.source.own else set()
        needed |= {Feature.SEED} if self.source is Source.SEEDED else set()
        return needed <= capabilities.features

    def ask(self, subject: OpenSubject, case: Case) -> Asked:
        """Draw all steps of a case; runs where the subject lives."""
        rows = _ENGINE_ROWS if subject.capabilities.level == 3 else _ROWS
        drawing = StepDraws(subject, case, rows, self.source)
        cells = []
        for call in range(case.calls):
            try:
                drawn = (
                    drawing.drafts(call) if self.source is Source.DRAFTS else drawing.steps(call)
                )
            except ImpossibleStepError as wrong:
                return Asked((wrong.finding,), rows * call)
            if isinstance(drawn, str):
                return Asked(draws=rows * call, unasked=drawn)
            cells.append(drawn)
        found = np.stack(cells)
        figures = ((self.clause, drawing.acceptance()),) if self.source is not Source.DRAFTS else ()
        return Asked(draws=found.size, figures=figures, ids=packed(found))


class StepProcess:
    """The evidence of one case, call by call."""

    def __init__(self, law: LawCase) -> None:
        self._process, self._size = LawProcess(law), law.cells.cell_of_id.size

    def update(self, cells: IntArray) -> None:
        """Take the cells of one call."""
        self._process.update(np.bincount(cells, minlength=self._size))

    def evidence(self) -> CaseEvidence:
        """Return what the case says now."""
        return self._process.evidence()


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSteps:
    """One case of a clause about drafts.

    Attributes:
        check: that it belongs to.
        case: one request and its drafts, `case.calls` times.
        clause: that is judged.
        pairing: where the drafts come from.
        rows: of each call.
        calls: of the subject.
        law: exact, of every cell.
        seen: per mistake the least probability that it is shown.

    """

    check: Check
    case: Case
    clause: ClauseId
    pairing: Source
    rows: int
    calls: int
    law: LawCase
    seen: tuple[Power, ...]

    @property
    def name(self) -> str:
        """Unique in its clause."""
        return self.law.name

    @property
    def bank(self) -> tuple[Alternative, ...]:
        """What all cases of the clause bet on together."""
        return self.law.alternatives

    @property
    def draws(self) -> int:
        """How many steps are drawn."""
        return self.rows * self.calls

    def calls_of(self, asked: Asked) -> Iterator[IntArray]:
        """Yield the calls of an answer."""
        yield from unpacked(asked.ids, self.calls, self.rows)

    def process(self) -> StepProcess:
        """Return the evidence before the first draw."""
        return StepProcess(self.law)


def plan_steps(
    capabilities: Capabilities, profile: str, budget: Budget, owned: frozenset[ClauseId]
) -> tuple[PlannedSteps, ...]:
    """Plan the cases of the owned clauses."""
    sizes = [one for one in _SIZES if one.clause in owned and one.applies(capabilities)]
    counts = {clause: sum(one.clause == clause for one in sizes) for clause in (_LAW, _DRAFTS)}
    return tuple(
        _planned(
            capabilities,
            one,
            profile,
            case_log_threshold(budget.log_threshold(one.clause), 1 / counts[one.clause]),
        )
        for one in sizes
    )


def _planned(
    capabilities: Capabilities, size: _Size, profile: str, log_threshold: float
) -> PlannedSteps:
    case = size.case(capabilities, profile)
    check = next(one for one in CHECKS if one.name == size.name)
    made = draft_law_case if size.source is Source.DRAFTS else joint_law_case
    law = made(f"{case.id} {size.name}", case, capabilities)
    rows = _ENGINE_ROWS if capabilities.level == 3 else _ROWS
    draws = rows * case.calls
    shown = []
    for place, one in enumerate(law.alternatives):
        if np.abs(law.laws[place] - law.probs).sum() > 1e-9:
            needed = log_threshold - math.log(one.weight / 2)
            direction = Direction(law.laws[place], law.log_ratios[place])
            shown.append(
                Power(f"{size.source}: {one.name}", directional_power(direction, draws, needed))
            )
    return PlannedSteps(check, case, size.clause, size.source, rows, case.calls, law, tuple(shown))


def _cases(size: _Size, capabilities: Capabilities) -> tuple[Case, ...]:
    return (size.case(capabilities, size.draws[0][0]),) if size.applies(capabilities) else ()


def _check(size: _Size) -> Check:
    def cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
        return _cases(size, capabilities)

    return Check(size.name, (size.clause,), Kind.PAIRS, cases, ask=size.ask)


_STEPS: Final = (("quick", 8192), ("full", 65536))
_SIZES: Final = (
    _Size("own-drafts", _LAW, Source.OWN, _STEPS),
    _Size("own-seeded-drafts", _LAW, Source.SEEDED, _STEPS),
    _Size("uneven-drafts", _LAW, Source.GIVEN, _STEPS),
    _Size("certain-drafts", _LAW, Source.CERTAIN, _STEPS),
    _Size("draft-laws", _DRAFTS, Source.DRAFTS, (("quick", 10240), ("full", 65536))),
)
CHECKS: tuple[Check, ...] = tuple(_check(size) for size in _SIZES)
"""Joint laws of two ids, with drafts of every source, and the drafts themselves."""
