"""Large batches: one finite id in each of so many rows that a 32-bit element index ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance import memory
from refsampler.conformance.case import Case, Hazard
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind, clause_ids
from refsampler.conformance.designed.build import batch, request, row
from refsampler.conformance.subject import OpenSubject, SubjectError, derived_seed
from refsampler.metadata import SamplingMetadata

__all__ = ["CHECKS"]

_CLAUSE, _RANGE = clause_ids("input.large", "output.range")
_VOCAB = 2**17
_STRIDE = 7919
_BEYOND = 8
"""Rows that lie wholly beyond the end of the index."""
_CPU_LOGIT_S = 2.1e-8
"""Nominal seconds of the native sampler on one core."""
_GPU_S = 2.0
"""What a batch took with the native sampler on an H200, which opened a process for the first."""


def _cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return batches that pass either end of a 32-bit index, signed and unsigned.

    Beyond the signed end one is asked with top-k too, whose buffers have indices of their own.
    """
    return _batches(capabilities, (1, {}), (1, {"top_k": 20}), (memory.ENDS, {}))


def _fast(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return those that suffice, where the device makes them in no time."""
    on_cpu = torch.device(capabilities.device).type == "cpu"
    if on_cpu and memory.ENDS * memory.ELEMENTS * _CPU_LOGIT_S > 1:
        return ()
    return _batches(capabilities, (1, {"top_k": 20}), (memory.ENDS, {}))


def _batches(capabilities: Capabilities, *asked: tuple[int, dict[str, Any]]) -> tuple[Case, ...]:
    """Return a first row for each end of a 32-bit index that the batch passes.

    Rows like it fill the batch.  No case where memory or the backend ends before; an engine would have
    to admit 16,000 requests.

    Args:
        capabilities: of the backend.
        asked: how many ends each batch passes, and the parameters of its rows.

    """
    if capabilities.level == 3 or memory.memory_short(capabilities.device):
        return ()
    most = capabilities.max_elements
    return tuple(
        batch(
            _VOCAB,
            [(row({0: 1.0}), request(**params))] * ends,
            _CLAUSE,
            _RANGE,
            hazard=Hazard.MEMORY,
        )
        for ends, params in asked
        if most is None or _rows(ends) * _VOCAB <= most
    )


def _rows(ends: int) -> int:
    return ends * memory.ELEMENTS // _VOCAB + _BEYOND


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Ask for the batch when it is its turn, if there is room."""
    ends, device = len(case.requests), subject.capabilities.device
    with memory.taking_turns(device, ends * memory.ELEMENTS):
        short = memory.memory_short(device, ends * memory.ELEMENTS)
        return Asked(unasked=short) if short else _ask_rows(subject, case, _rows(ends))


def _ask_rows(subject: OpenSubject, case: Case, rows: int) -> Asked:
    """Give row r its one finite id at 7919 r mod V, and look for it in every row."""
    device = subject.capabilities.device
    right = _STRIDE * np.arange(rows) % _VOCAB
    logits = torch.full((rows, _VOCAB), -torch.inf, device=device)
    logits.scatter_(1, torch.from_numpy(right)[:, None].to(device), 1.0)
    requests = case.requests[:1] * rows
    metadata = SamplingMetadata.from_requests(requests, _VOCAB, device=device)
    seed = derived_seed(subject.run_seed, case.id)
    try:
        draw = subject.sample_prepared(logits, metadata, seed)
    except SubjectError as error:
        # smaller batches of such rows are asked elsewhere: what raises here is the size
        broken = (ClauseId("output.returns"), _CLAUSE)
        return Asked(tuple(Finding(one, f"{rows} ids", str(error)) for one in broken), 0)
    if len(draw.ids) != rows:
        return Asked((Finding(ClauseId("output.form"), f"{rows} ids", draw.form),), rows)
    return Asked(tuple(_judge(draw.ids, right)), rows)


def _judge(ids: Int64[np.ndarray, " rows"], right: Int64[np.ndarray, " rows"]) -> Iterator[Finding]:
    """Name the clause of large batches for every wrong id, and that of the range for its own."""
    outside = (ids < 0) | (ids >= _VOCAB)
    for clause, wrong in ((_CLAUSE, ids != right), (_RANGE, outside)):
        if wrong.any():
            first = int(wrong.argmax())
            seen = (
                f"id {ids[first]} in row {first}; {int(wrong.sum())} of {len(ids)} rows are wrong"
            )
            yield Finding(clause, f"id {right[first]}", seen, row=first)


CHECKS: tuple[Check, ...] = (
    Check("large-batches", (_CLAUSE, _RANGE), Kind.EXACT, _cases, ask=_ask, profiles=("full",)),
    Check(
        "large-batches-fast",
        (_CLAUSE, _RANGE),
        Kind.EXACT,
        _fast,
        ask=_ask,
        profiles=("quick",),
        seconds=_GPU_S,
    ),
)
