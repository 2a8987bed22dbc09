"""Large batches: one finite id in each of so many rows that a 32-bit element index ends."""

from __future__ import annotations

import numpy as np
import torch

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance import memory
from refsampler.conformance.case import Case, Hazard
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind
from refsampler.conformance.designed.build import batch, request, row
from refsampler.conformance.subject import OpenSubject, derived_seed
from refsampler.metadata import SamplingMetadata

__all__ = ["CHECKS"]

_CLAUSE = ClauseId("input.large")
_VOCAB = 2**17
_STRIDE = 7919
_BEYOND = 8
"""Rows that lie wholly beyond the end of the index."""


def _cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return a first row, whose like fill the batch; none where memory or the backend ends before.

    An engine would have to admit 16,000 requests for it.
    """
    rows = memory.ELEMENTS // _VOCAB + _BEYOND
    most = capabilities.max_elements
    unfit = most is not None and rows * _VOCAB > most
    if capabilities.level == 3 or unfit or memory.memory_short(capabilities.device):
        return ()
    return (batch(_VOCAB, [(row({0: 1.0}), request())], _CLAUSE, hazard=Hazard.MEMORY),)


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Give row r its one finite id at 7919 r mod V, and look for it in every row."""
    rows, device = memory.ELEMENTS // _VOCAB + _BEYOND, subject.capabilities.device
    right = _STRIDE * np.arange(rows) % _VOCAB
    logits = torch.full((rows, _VOCAB), -torch.inf, device=device)
    logits.scatter_(1, torch.from_numpy(right)[:, None].to(device), 1.0)
    metadata = SamplingMetadata.from_requests(case.requests * rows, _VOCAB, device=device)
    draw = subject.sample_prepared(logits, metadata, derived_seed(subject.run_seed, case.id))
    if len(draw.ids) != rows:
        return Asked((Finding(ClauseId("output.form"), f"{rows} ids", draw.form),), rows)
    wrong = np.flatnonzero(draw.ids != right)
    if not len(wrong):
        return Asked((), rows)
    first = int(wrong[0])
    seen = f"id {draw.ids[first]} in row {first}; {len(wrong)} of {rows} rows are wrong"
    return Asked((Finding(_CLAUSE, f"id {right[first]}", seen, row=first),), rows)


CHECKS: tuple[Check, ...] = (
    Check("large-batches", (_CLAUSE,), Kind.EXACT, _cases, ask=_ask, profiles=("full",)),
)
