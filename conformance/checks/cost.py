"""Cost: how a step's time grows with the history; a ratio within one run, reported only."""

from __future__ import annotations

import time
from typing import Any

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Kind
from refsampler.conformance.checks.batches import reordered
from refsampler.conformance.checks.metadata import sample_metadata
from refsampler.conformance.closing import quietly
from refsampler.conformance.designed.build import Row, batch, peak, request
from refsampler.conformance.sessions import asking, opened, sample_step
from refsampler.conformance.subject import OpenSubject, derived_seed
from refsampler.metadata import SamplingMetadata

__all__ = ["CHECKS"]

_CLAUSE = ClauseId("cost.bounded")
_SHORT, _LONG = 64, 4096
_ROWS, _TIMES = 8, 7


def _cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return equal rows with short histories, then as many with long ones."""
    if capabilities.level == 1:
        return ()
    penalised: dict[str, Any] = {}
    if Feature.PENALTIES in capabilities.features:
        penalised = {"frequency_penalty": 0.5}
    rows: list[Row] = []
    for length in (_SHORT, _LONG):
        output = tuple((7 * place) % 1000 for place in range(length))
        asked = request(output=output, **penalised)
        rows += [(peak(1023), asked)] * _ROWS
    return (batch(1024, rows, _CLAUSE),)


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Time steps of both kinds by turns and compare the fastest; nothing is ever wrong."""
    if subject.capabilities.level == 3:
        seconds = _in_session(subject, case)
    else:
        seconds = _in_batches(subject, case)
    ratio = seconds[1] / max(seconds[0], 1e-9)
    words = (
        f"a step with {_LONG} ids of history takes {ratio:.2g} times as long as one with {_SHORT}"
    )
    return Asked((), 2 * _ROWS * _TIMES, ((_CLAUSE, words),))


def _in_batches(subject: OpenSubject, case: Case) -> list[float]:
    """Time whole calls, metadata made before."""
    best = [float("inf")] * 2
    halves = [reordered(case, list(range(half * _ROWS, half * _ROWS + _ROWS))) for half in (0, 1)]
    device = subject.capabilities.device
    made = [
        SamplingMetadata.from_requests(one.requests, one.logits.vocab, device=device)
        for one in halves
    ]
    for _ in range(_TIMES):
        for half in (0, 1):
            started = time.perf_counter()
            output = sample_metadata(subject, halves[half], made[half])
            # reading the ids waits for a device
            output.sampled_token_ids.tolist()
            best[half] = min(best[half], time.perf_counter() - started)
    return best


def _in_session(subject: OpenSubject, case: Case) -> list[float]:
    """Time steps of one session in which both kinds of requests live."""
    best = [float("inf")] * 2
    seed = derived_seed(subject.run_seed, case.id)
    with opened(subject, case.logits.vocab, seed, quietly) as session:
        with asking():
            for name, one in enumerate(case.requests):
                session.add(name, one)
        for turn in range(2 * _TIMES):
            half = turn % 2
            rows = list(range(half * _ROWS, half * _ROWS + _ROWS))
            # once more than timed: the first step moves the other half out
            sample_step(subject, session, case, tuple(rows), rows)
            logits = case.build_logits(subject.capabilities.device)[rows]
            started = time.perf_counter()
            with asking():
                session.sample(rows, logits).sampled_token_ids.tolist()
            best[half] = min(best[half], time.perf_counter() - started)
    return best


CHECKS: tuple[Check, ...] = (Check("cost-of-history", (_CLAUSE,), Kind.EXACT, _cases, ask=_ask),)
