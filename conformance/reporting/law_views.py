"""The laws of a stored run as they are shown: numbers, textbook tests, plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from refsampler.conformance.evidence.diagnostics import Diagnostic, diagnostics
from refsampler.conformance.evidence.pool import case_log_threshold
from refsampler.conformance.plan import LAW
from refsampler.conformance.reporting.chart import Chart
from refsampler.conformance.reporting.plots import evidence_plot, law_plots
from refsampler.conformance.reporting.stored import StoredRun
from refsampler.conformance.reporting.stored_law import StoredLaw
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
        plots: of its counts and of its evidence.

    """

    case: str
    words: str
    draws: int
    planned: int
    tv_upper: float | None
    evidence: str
    refuted: tuple[str, ...]
    tests: tuple[Diagnostic, ...]
    plots: tuple[Chart, ...]


def law_views(run: StoredRun, laws: Sequence[StoredLaw]) -> tuple[LawView, ...]:
    """Return the laws, those with most evidence against them first."""
    ordered = sorted(laws, key=lambda one: -one.record.log_e)
    return tuple(_view(run, one) for one in ordered)


def _view(run: StoredRun, one: StoredLaw) -> LawView:
    record = one.record
    alone = len(run.laws) + len(run.mixed)
    evidence = evidence_plot(record.path, case_log_threshold(SPLIT.log_threshold(LAW), 1 / alone))
    return LawView(
        case=record.id,
        words=one.words,
        draws=record.draws,
        planned=record.planned,
        tv_upper=record.tv_upper,
        evidence=f"10^{record.log_e / math.log(10):.2f}",
        refuted=record.refuted,
        tests=diagnostics(one.probs, one.counts, run.header.run_seed),
        plots=(*law_plots(one), *(() if evidence is None else (evidence,))),
    )
