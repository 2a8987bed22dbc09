"""The exact law of a row: what a right backend must draw from, under declared semantics.

The law is computed in float64 from the very logits and float32 parameters that the backend got.  It
walks `Semantics.order`; nothing else decides order.  Where float32 rounding may decide otherwise it
says so: a right backend keeps all of the `core` and nothing outside the `hull`, and given that the
drawn id lies in the core its law is known whatever else was kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from refsampler.kept import Kept
from refsampler.law_filters import min_p, top_k, top_p
from refsampler.law_row import Row
from refsampler.law_steps import Seen, apply_step, forced_ids
from refsampler.request import Request, ThinkingMarkers
from refsampler.semantics import Semantics, Step

__all__ = ["TargetLaw", "target_law", "trace_law"]

_FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_CHUNK_ELEMENTS = 2**18
_AFTER_PENALTIES = (Step.TEMPERATURE, Step.MIN_P, Step.TOP_K, Step.TOP_P)


@dataclass(frozen=True, slots=True)
class TargetLaw:
    """The law of each row, with what rounding leaves open.

    Attributes:
        greedy: rows that take the argmax.
        admissible: ids that a right backend may return; of a random row its hull.
        logprobs: log-probability of each core id, given that the id is in the core or the tie
            class, in nats; -inf elsewhere.  The law itself where `exact`.
        core: ids that every right backend keeps; of a greedy row the id, if it is certain.
        hull: ids that a right backend may keep.
        lumped: a tie class of which a known number is kept, nobody knows which: one cell.
        lump_logprob: log-probability of that cell, in nats; -inf without one.
        exact: rows without rounding ambiguity: the hull is the core and the tie class.
        magnitude: M, the largest |intermediate| / T over ids within 40 nats of the top; the law
            is known to a total variation of 2^-23 M.
        valid: False where there is no law: NaN, +inf or nothing finite.
        lump_count: how many ids of the tie class are kept; 0 without one.
        processed: the logits after the last step, in nats; -inf outside what the filters may keep.

    """

    greedy: Bool[Tensor, " rows"]
    admissible: Bool[Tensor, "rows vocab"]
    logprobs: Float64[Tensor, "rows vocab"]
    core: Bool[Tensor, "rows vocab"]
    hull: Bool[Tensor, "rows vocab"]
    lumped: Bool[Tensor, "rows vocab"]
    lump_logprob: Float64[Tensor, " rows"]
    exact: Bool[Tensor, " rows"]
    magnitude: Float64[Tensor, " rows"]
    valid: Bool[Tensor, " rows"]
    lump_count: Int64[Tensor, " rows"]
    processed: Float64[Tensor, "rows vocab"]


@dataclass(frozen=True, slots=True)
class _Controls:
    """Temperature and filter parameters as float32 brings them, neutral on greedy rows."""

    greedy: Bool[Tensor, " rows"]
    temperature: Float64[Tensor, " rows"]
    min_p: Float64[Tensor, " rows"]
    top_k: Int64[Tensor, " rows"]
    top_p: Float64[Tensor, " rows"]

    @classmethod
    def of(cls, seen: Seen, logits: Float[Tensor, "rows vocab"]) -> Self:
        """Read the parameters of each row."""
        params = [request.params for request in seen.requests]
        vocab, device = logits.shape[1], logits.device

        def floats(values: Sequence[float]) -> Float64[Tensor, " rows"]:
            return torch.tensor(values, dtype=torch.float32, device=device).double()

        temperature = floats([one.temperature for one in params])
        asked = torch.tensor([one.temperature for one in params], dtype=torch.float64).to(device)
        greedy = (asked < seen.semantics.greedy_below) | (temperature == 0)
        limits = [one.top_k if 0 < one.top_k < vocab else vocab for one in params]
        k = torch.tensor(limits, dtype=torch.int64, device=device)
        return cls(
            greedy=greedy,
            temperature=torch.where(greedy, 1.0, temperature),
            min_p=torch.where(greedy, 0.0, floats([one.min_p for one in params])),
            top_k=torch.where(greedy, vocab, k),
            top_p=torch.where(greedy, 1.0, floats([one.top_p for one in params])),
        )


def target_law(
    logits: Float[Tensor, "rows vocab"],
    requests: Sequence[Request],
    semantics: Semantics = Semantics(),
    *,
    thinking: ThinkingMarkers | None = None,
    predict_bonus_token: bool = False,
    chunk_rows: int | None = None,
) -> TargetLaw:
    """Return the law of each row (clauses `order.pipeline`, `draw.law`).

    Args:
        logits: float32, bfloat16 or float16, as the backend gets them.
        requests: one a row.
        semantics: what the backend declares.
        thinking: markers of the model's thinking section.
        predict_bonus_token: bad words, penalties and thinking see the drafts as history.
        chunk_rows: rows computed at a time; None bounds memory for any width.

    Raises:
        TypeError: the logits have another dtype.
        ValueError: the number of requests is not that of the rows, or chunk_rows is below 1.
        ParameterError: a request or a marker is out of range (clause `input.validated`).

    """
    _check(logits, requests, thinking)
    rows, vocab = logits.shape
    size = max(1, _CHUNK_ELEMENTS // vocab) if chunk_rows is None else chunk_rows
    if size < 1:
        raise ValueError(f"chunk_rows = {chunk_rows!r} is refused: allowed is None or at least 1")
    if rows <= size:
        return _law(logits, Seen(requests, semantics, thinking, predict_bonus_token))
    laws = (
        _law(
            logits[start : start + size],
            Seen(requests[start : start + size], semantics, thinking, predict_bonus_token),
        )
        for start in range(0, rows, size)
    )
    return _joined(laws, rows)


def trace_law(
    logits: Float[Tensor, " vocab"],
    request: Request,
    semantics: Semantics = Semantics(),
    *,
    thinking: ThinkingMarkers | None = None,
    predict_bonus_token: bool = False,
) -> tuple[tuple[Step, Float64[Tensor, " vocab"]], ...]:
    """Return one row after each step, in float64; ids outside the hull are -inf.

    A greedy row passes temperature and filters unchanged.  A forced id shows as 0, all others as
    -inf.

    Raises:
        TypeError: the logits have another dtype.
        ParameterError: the request or a marker is out of range.

    """
    one = logits[None]
    _check(one, [request], thinking)
    seen = Seen([request], semantics, thinking, predict_bonus_token)
    return tuple(
        (step, torch.where(kept.hull, row.x, -torch.inf)[0])
        for step, row, kept in _walk(Row.of(one), seen, _Controls.of(seen, one))
    )


def _check(
    logits: Float[Tensor, "rows vocab"],
    requests: Sequence[Request],
    thinking: ThinkingMarkers | None,
) -> None:
    """Refuse logits and requests that have no meaning together."""
    if logits.dtype not in _FLOAT_DTYPES:
        names = ", ".join(str(dtype) for dtype in _FLOAT_DTYPES)
        raise TypeError(f"logits.dtype = {logits.dtype} is refused: allowed are {names}")
    if len(requests) != logits.shape[0]:
        raise ValueError(
            f"requests = {len(requests)} is refused: allowed is one a row, {logits.shape[0]}"
        )
    for request in requests:
        request.verify(logits.shape[1])
    if thinking is not None:
        thinking.verify(logits.shape[1])


def _joined(laws: Iterator[TargetLaw], rows: int) -> TargetLaw:
    """Join the laws of successive rows.

    They are written into place one by one: a large batch's laws would not fit into memory twice.
    """
    first = next(laws)
    joined = {
        field.name: getattr(first, field.name).new_empty(
            (rows, *getattr(first, field.name).shape[1:])
        )
        for field in fields(TargetLaw)
    }
    start = 0
    for law in itertools.chain([first], laws):
        stop = start + len(law.valid)
        for name, tensor in joined.items():
            tensor[start:stop] = getattr(law, name)
        start = stop
    return TargetLaw(**joined)


def _law(logits: Float[Tensor, "rows vocab"], seen: Seen) -> TargetLaw:
    """Return the law of some rows."""
    clean = ~(logits.isnan() | logits.isposinf()).any(-1)
    controls = _Controls.of(seen, logits)
    row = Row.of(torch.where(clean[:, None], logits, 0.0))
    kept = Kept.everything(row.x > -torch.inf)
    for _, one, survivors in _walk(row, seen, controls):
        row, kept = one, survivors
    processed = torch.where(kept.hull, row.x, -torch.inf)
    valid = clean & kept.hull.any(-1)
    if bool(controls.greedy.any()):
        kept = kept.replaced(controls.greedy, _argmax(row, seen.semantics))
    if not bool(valid.all()):
        kept = kept.replaced(~valid, Kept.everything(torch.zeros_like(kept.hull)))
    logprobs, lump_logprob = _normalised(row, kept)
    return TargetLaw(
        greedy=controls.greedy,
        admissible=kept.hull,
        logprobs=logprobs,
        core=kept.core,
        hull=kept.hull,
        lumped=kept.tied,
        lump_logprob=lump_logprob,
        exact=kept.known & valid,
        magnitude=torch.where(valid, row.magnitude(kept.hull), 0.0),
        valid=valid,
        lump_count=kept.count,
        processed=processed,
    )


def _walk(row: Row, seen: Seen, controls: _Controls) -> Iterator[tuple[Step, Row, Kept]]:
    """Yield the rows after each step of the order, and who survives; the one place that orders."""
    semantics = seen.semantics
    kept = base = Kept.everything(row.x > -torch.inf)
    joint = False
    for step in semantics.order:
        if semantics.filter_space == "logprob" and step in _AFTER_PENALTIES:
            # of the temperature's quotients too: whether it comes before or after is not declared
            row = row.as_logprobs()
        match step:
            case Step.TEMPERATURE:
                row = row.divided(controls.temperature)
            case Step.MIN_P:
                kept = min_p(row, kept, controls.min_p, semantics)
            case Step.TOP_K:
                base, joint = kept, semantics.top_p_mass == "joint"
                kept = top_k(row, kept, controls.top_k, semantics)
            case Step.TOP_P:
                kept = top_p(row, kept, base if joint else kept, controls.top_p, semantics)
            case Step.THINKING:
                ids = forced_ids(seen, row.x)
                if bool((ids >= 0).any()):
                    row = row.forced(ids)
                    kept = kept.replaced(ids >= 0, Kept.everything(row.x > -torch.inf))
            case _:
                before, row = row, apply_step(step, row, seen)
                # equal ids may have become unequal
                if row is not before or bool(kept.tied.any()):
                    kept = kept.dissolved().cut(row.x > -torch.inf, row.x > -torch.inf)
        yield step, row, kept


def _argmax(row: Row, semantics: Semantics) -> Kept:
    """Return the ids that a greedy row may give (clauses `greedy.argmax`, `greedy.tie`).

    Without rounding the maximum is one id, or the lowest of its equals where that is declared.
    """
    alive = row.x > -torch.inf
    best = alive & (row.x >= (row.top(alive) - row.band)[:, None])
    lowest = best & (best.cumsum(-1) == 1)
    if semantics.greedy_ties == "lowest":
        best = torch.where(row.inexact[:, None], best & ~_equal_to_a_lower(row, best), lowest)
    single = (best.sum(-1) == 1)[:, None]
    return Kept.between(best & single, best)


def _equal_to_a_lower(row: Row, among: Bool[Tensor, "rows vocab"]) -> Bool[Tensor, "rows vocab"]:
    """Return the ids that are equal to a lower one in float32 too: the lowest of them comes first."""
    sound = among & row.sound
    repeated = torch.zeros_like(sound)
    if bool((sound.sum(-1) > 1).any()):
        values, order = torch.where(sound, row.x, -torch.inf).sort(dim=-1, stable=True)
        again = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)
        repeated.scatter_(-1, order[:, 1:], again)
    return repeated


def _normalised(
    row: Row, kept: Kept
) -> tuple[Float64[Tensor, "rows vocab"], Float64[Tensor, " rows"]]:
    """Return the log-probabilities of the core and of the tie class, which sum to 1 together."""
    top = row.top(kept.core | kept.tied)[:, None]
    weight = kept.least() * (row.x - top).exp()
    total = weight.sum(-1, keepdim=True).log()
    tied = torch.where(kept.tied, weight, 0.0).sum(-1, keepdim=True).log()
    logprobs = torch.where(kept.core, row.x - top - total, -torch.inf)
    return logprobs, torch.where(kept.tied.any(-1, keepdim=True), tied - total, -torch.inf)[:, 0]
