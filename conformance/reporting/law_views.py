"""The laws of a stored run as they are shown: numbers, textbook tests, plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from refsampler.conformance.evidence.diagnostics import Diagnostic, diagnostics
from refsampler.conformance.evidence.pool import case_log_threshold
from refsampler.conformance.plan import LAW
from refsampler.conformance.reporting.plots import Plot, evidence_plot, law_plots
from refsampler.conformance.reporting.stored import StoredRun
from refsampler.conformance.reporting.stored_law import StoredLaw
from refsampler.conformance.reporting.svg import Sheet
from refsampler.conformance.sequential import SPLIT

__all__ = ["LawView", "law_views"]


@dataclass(frozen=True, slots=True)
class LawView:
    """One law.

    Attributes:
        case: its id.
        words: the row.
        draws: taken.
        planned: at most; 0 where the report does not say.
        tv_upper: its distance is below that with probability 1 - 1e-6; None if not looked at.
        evidence: e-value of the case's mixture, as a power of ten in words.
        refuted: biases whose refutation ended it early.
        tests: textbook tests, which never judge.
        plots: none without the extra.

    """

    case: str
    words: str
    draws: int
    planned: int
    tv_upper: float | None
    evidence: str
    refuted: tuple[str, ...]
    tests: tuple[Diagnostic, ...]
    plots: tuple[Plot, ...]


def law_views(run: StoredRun, laws: Sequence[StoredLaw], *, plots: bool) -> tuple[LawView, ...]:
    """Return the laws, those with most evidence against them first.

    Raises:
        ImportError: plots are wanted, and matplotlib is not installed.

    """
    ordered = sorted(laws, key=lambda one: -one.record.log_e)
    sheet = Sheet() if plots else None
    return tuple(_view(run, one, sheet) for one in ordered)


def _view(run: StoredRun, one: StoredLaw, sheet: Sheet | None) -> LawView:
    record = one.record
    drawn: list[Plot] = []
    if sheet is not None:
        alone = len(run.laws) + len(run.mixed)
        needed = case_log_threshold(SPLIT.log_threshold(LAW), 1 / alone)
        evidence = evidence_plot(record.id, record.path, needed, sheet)
        drawn = [*law_plots(one, sheet), *(() if evidence is None else (evidence,))]
    return LawView(
        case=record.id,
        words=one.words,
        draws=record.draws,
        planned=record.planned,
        tv_upper=record.tv_upper,
        evidence=f"10^{record.log_e / math.log(10):.2f}",
        refuted=record.refuted,
        tests=diagnostics(one.probs, one.counts, run.header.run_seed),
        plots=tuple(drawn),
    )
