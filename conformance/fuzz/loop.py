"""The loop: draw a batch, ask, judge, keep what was found, look at the law; until told to stop.

What is nearly certain is charged case by case.  Batches are judged beyond 50 nats and last for years;
the few checks of the suite that are judged beyond 35 end when 1e-10 is spent, after a day or so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import Phase

from refsampler.conformance.case import Case, CaseId
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks.base import CERTAIN, Check, Kind
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.checks.generated import legal_features
from refsampler.conformance.checks.rows import draw_charge
from refsampler.conformance.evidence.budget import NEAR_CERTAIN
from refsampler.conformance.examples import run_examples
from refsampler.conformance.fuzz import oracles
from refsampler.conformance.fuzz.asks import asks_of
from refsampler.conformance.fuzz.channels import Channel, channels_of
from refsampler.conformance.fuzz.found import FoundBook
from refsampler.conformance.fuzz.law import LawEvidence
from refsampler.conformance.fuzz.sketch import pairs_in, pairs_of
from refsampler.conformance.isolation import AskedSubject
from refsampler.conformance.subject import derived_seed
from refsampler.conformance.within import within

__all__ = ["Progress", "fuzz"]


@dataclass(slots=True)
class Progress:
    """What a fuzzing run has done so far.

    Attributes:
        batches: judged.
        draws: ids drawn.
        seconds: since the start.
        generating: seconds that went into drawing and writing out the batches.
        pairs: of features that met in a row.
        possible: pairs that could meet.
        log_e: of the law.
        best: the bet that says most.
        errors: of the harness, in words.
        by_channel: batches of each channel.

    """

    possible: int = 0
    batches: int = 0
    draws: int = 0
    seconds: float = 0.0
    generating: float = 0.0
    pairs: set[tuple[str, str]] = field(default_factory=set)
    log_e: float = 0.0
    best: str = ""
    errors: list[str] = field(default_factory=list)
    by_channel: dict[str, int] = field(default_factory=dict)


def fuzz(
    subject: AskedSubject,
    run_seed: int,
    book: FoundBook,
    *,
    stop: Callable[[Progress], bool],
    tell: Callable[[Progress], None] = lambda _progress: None,
    law: LawEvidence | None = None,
    share: float = 1.0,
) -> Progress:
    """Fuzz until `stop`, which is asked before each batch.

    Args:
        subject: the backend.
        run_seed: of the batches and of their draws; the same one gives the same batches.
        book: takes what is found.
        stop: given what was done so far.
        tell: told the same after each batch.
        law: takes the draws of unseeded rows; None judges no law.
        share: of the 1e-10 of near-certain cases that this run may spend; shards divide it.

    """
    run = _Run(subject, run_seed, book, stop, tell, law, share)
    channels = channels_of(subject.capabilities)
    drawn = [0] * len(channels)
    number = 0
    while not stop(run.progress):
        left = [at for at, (channel, _) in enumerate(channels) if run.affords(channel.check)]
        if not left:
            break
        # the one that is furthest behind its share; the same seed asks the same in the same order
        at = min(left, key=lambda one: drawn[one] / channels[one][0].share)
        channel, strategy = channels[at]
        drawn[at] += channel.chunk
        run.channel = channel
        seed = derived_seed(run_seed, channel.name, number)
        # a body that raises would make Hypothesis look for a smaller example, its own way
        run.waiting = time.monotonic()
        run_examples(strategy, run.take, seed, channel.chunk, (Phase.generate,))
        run.progress.generating += time.monotonic() - run.waiting
        number += 1
    if law is not None:
        run.look(law)
    return run.progress


class _Run:
    """What a run carries from batch to batch."""

    def __init__(
        self,
        subject: AskedSubject,
        run_seed: int,
        book: FoundBook,
        stop: Callable[[Progress], bool],
        tell: Callable[[Progress], None],
        law: LawEvidence | None,
        share: float,
    ) -> None:
        self.subject, self.run_seed, self.book = subject, run_seed, book
        self.stop, self.tell, self.law = stop, tell, law
        possible = len(pairs_of(asks_of(legal_features(subject.capabilities))))
        self.progress = Progress(possible)
        self.channel: Channel
        self.started = self.waiting = time.monotonic()
        self._asked: set[CaseId] = set()
        self._charged, self._most = 0.0, share * NEAR_CERTAIN

    def affords(self, check: Check) -> bool:
        """Whether a case of the check may still cost what it may cost in false alarms."""
        return check.kind is not Kind.NEAR_CERTAIN or self._charged < self._most

    def take(self, case: Case) -> None:
        """Ask and judge a batch; each once."""
        now = time.monotonic()
        self.progress.generating += now - self.waiting
        takes = within(case, self.subject.capabilities)
        if takes and not self.stop(self.progress) and case.id not in self._asked:
            self._asked.add(case.id)
            self._judge(case)
        self.waiting = time.monotonic()

    def _judge(self, case: Case) -> None:
        progress, check = self.progress, self.channel.check
        try:
            judged = judge_case(self.subject, check, case)
        except Exception as error:  # noqa: BLE001 - a fault of ours costs the batch, not the run
            progress.errors.append(f"{check.name} {case.id}: {type(error).__name__}: {error}")
            return
        progress.batches += 1
        progress.draws += judged.draws
        if check.kind is Kind.NEAR_CERTAIN:
            nats = oracles.CERTAIN if check is oracles.FUZZED else CERTAIN
            self._charged += draw_charge(judged.draws, nats)
        name = self.channel.name
        progress.by_channel[name] = progress.by_channel.get(name, 0) + 1
        progress.pairs |= pairs_in(case)
        progress.seconds = time.monotonic() - self.started
        if judged.findings:
            self.book.take(check, case, judged.findings, progress.seconds, progress.batches)
        elif self.law is not None and judged.ids:
            ids = np.frombuffer(judged.ids, "<i4").astype(np.int64)
            self.law.take(case, Expected.of(case, self.subject.capabilities.semantics), ids)
            progress.log_e = self.law.largest
        progress.seconds = time.monotonic() - self.started
        self.tell(progress)

    def look(self, law: LawEvidence) -> None:
        """Judge the last draws too."""
        law.look()
        self.progress.log_e, self.progress.best = law.largest, law.best
