"""Judge logprobs: the values of a whole row, and what each row was given of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tests.vllm_parity.findings import ROUNDING, Batch, Finding, Kind
from tests.vllm_parity.sides import Side

__all__ = ["gathered", "whole"]

ABSOLUTE = 2e-5
"""Error of a float32 log-softmax near a peak."""


def whole(batch: Batch, row: int) -> Finding:
    """Return whether the whole row of the asked mode has the same values (`logprobs.raw`)."""
    check = f"whole row of {batch.mode}"
    ours, real = batch.ours.whole[row], batch.real.whole[row]
    return Finding(
        check,
        *_whole(batch, row, ours, real),
        row,
        _largest_difference(ours, real),
        _largest_difference(real, ours),
    )


def _whole(batch: Batch, row: int, ours: Tensor, real: Tensor) -> tuple[Kind, str]:
    raw = batch.mode.startswith("raw")
    if not (ours.isfinite().any() or real.isfinite().any()):
        return _without_law(ours, real), "logprobs.finite"
    if ours.isnan().any():
        return Kind.UNEXPLAINED, "logprobs.finite"
    if raw:
        return (Kind.AGREES if torch.equal(ours, real) else Kind.UNEXPLAINED), "logprobs.raw"
    if torch.equal(ours.isfinite(), real.isfinite()):
        return _values(batch, row)
    if batch.requests[row].params.greedy:
        kind = Kind.DEPARTS if _lost_the_invisible(batch, row) else Kind.UNEXPLAINED
        return kind, "logprobs.raw"
    return batch.kept_sets(row)


def _without_law(ours: Tensor, real: Tensor) -> Kind:
    """A row with nothing finite: vLLM's log-softmax is NaN, the reference never has NaN."""
    if ours.isnan().any():
        return Kind.UNEXPLAINED
    if torch.equal(ours, real):
        return Kind.AGREES
    return Kind.DEPARTS if bool(real.isnan().all()) else Kind.UNEXPLAINED


def _values(batch: Batch, row: int) -> tuple[Kind, str]:
    """Return whether the values lie within the contract's band, where the same ids are finite."""
    alive = batch.ours.whole[row].isfinite()
    ours, real = batch.ours.whole[row][alive], batch.real.whole[row][alive]
    apart = (ours - real).abs()
    band = ROUNDING * ours.abs() + (0 if batch.mode == "processed_logits" else ABSOLUTE)
    if bool((apart <= band).all()):
        return Kind.AGREES, ""
    rounded = batch.rounded_repetition(row) and bool((apart <= band + batch.rounding(row)).all())
    return (Kind.DEPARTS, "penalty.repetition") if rounded else (Kind.UNEXPLAINED, "logprobs.raw")


def _lost_the_invisible(batch: Batch, row: int) -> bool:
    """Say whether vLLM dropped only ids whose float32 probability is 0, from a greedy row.

    The other rows' top-p filter reaches it with p = 1.
    """
    ours, real = batch.ours.whole[row], batch.real.whole[row]
    dropped = ours.isfinite() & ~real.isfinite()
    gained = real.isfinite() & ~ours.isfinite()
    invisible = torch.softmax(batch.real.before_filters[row], dim=-1) == 0
    both = ours.isfinite() & real.isfinite()
    band = ABSOLUTE + ROUNDING * ours[both].abs() + batch.rounding(row)
    close = (ours[both] - real[both]).abs() <= band
    return not bool(gained.any()) and bool(invisible[dropped].all()) and bool(close.all())


def gathered(batch: Batch) -> Iterator[Finding]:
    """Yield whether each row got the entries and the rank that it asked for.

    Each side is held against its own whole row, by vLLM's rule; the rows were compared before.
    """
    check, clause = "logprobs present or absent", "logprobs.gather"
    ours, real = batch.ours.gathered, batch.real.gathered
    if ours is None or real is None:
        kind = Kind.AGREES if ours is real else Kind.UNEXPLAINED
        yield Finding(check, kind, clause, None, _presence(ours), _presence(real))
        return
    yield Finding(check, Kind.AGREES)
    asked = _entries_asked(batch)
    for row in range(len(batch.requests)):
        yield _entries(batch, row, asked)
        if int(ours.ids[row, 0]) == int(real.ids[row, 0]):
            yield _rank(batch, row)


def _entries_asked(batch: Batch) -> int:
    """Return N of the batch: the largest number that a row without a list asked for."""
    params = [one.params for one in batch.requests]
    return max((one.logprobs or 0 for one in params if not one.logprob_token_ids), default=0)


def _entries(batch: Batch, row: int, count: int) -> Finding:
    """Return whether both sides gathered what the rule says (`logprobs.gather`)."""
    check, clause = "gathered ids, values and rank", "logprobs.gather"
    listed = batch.requests[row].params.logprob_token_ids
    shown = (row, _entry(batch.ours, row), _entry(batch.real, row))
    if batch.ours.whole[row].isnan().any():
        return Finding(check, Kind.UNEXPLAINED, "logprobs.finite", *shown)
    if not _follows(batch.ours, row, listed, count):
        return Finding(check, Kind.UNEXPLAINED, clause, *shown)
    if _follows(batch.real, row, listed, count):
        return Finding(check, Kind.AGREES)
    if batch.real.whole[row].isnan().any():
        return Finding(check, Kind.DEPARTS, "logprobs.finite", *shown)
    another_listed = any(one.params.logprob_token_ids for one in batch.requests) and not listed
    replaced = another_listed and _follows(batch.real, row, None, 0)
    return Finding(check, Kind.DEPARTS if replaced else Kind.UNEXPLAINED, clause, *shown)


def _follows(side: Side, row: int, listed: Sequence[int] | None, count: int) -> bool:
    """Say whether a row shows the sampled id, then its list or the top, padded, and the rank."""
    assert side.gathered is not None
    ids, values = side.gathered.ids[row].long(), side.gathered.values[row]
    whole_row, sampled = side.whole[row], int(side.ids[row])
    width = 1 + (len(listed) if listed else count)
    if len(ids) < width or int(ids[0]) != sampled:
        return False
    top = whole_row.topk(0 if listed else count).values
    right = ids[1:width].tolist() == list(listed) if listed else torch.equal(values[1:width], top)
    distinct = len(set(ids[1:width].tolist())) == width - 1
    padded = bool((values[width:] == -torch.inf).all()) and not bool(ids[width:].any())
    own = torch.equal(values[:width], whole_row[ids[:width]])
    rank = int((whole_row >= whole_row[sampled]).sum())
    return right and distinct and padded and own and rank == int(side.gathered.ranks[row])


def _rank(batch: Batch, row: int) -> Finding:
    """Return whether the same sampled id has the same rank, up to rounding (`logprobs.rank`)."""
    check, clause = "rank of an id that both sampled", "logprobs.rank"
    assert batch.ours.gathered is not None
    assert batch.real.gathered is not None
    ours, real = (int(s.gathered.ranks[row]) for s in (batch.ours, batch.real) if s.gathered)
    if ours == real:
        return Finding(check, Kind.AGREES)
    seen = (row, str(ours), str(real))
    judged = whole(batch, row)
    if judged.kind is not Kind.AGREES:
        return Finding(check, judged.kind, judged.clause, *seen)
    values = batch.real.whole[row]
    value = values[int(batch.real.ids[row])]
    band = ABSOLUTE + ROUNDING * value.abs()
    lowest, highest = int((values > value + band).sum()) + 1, int((values >= value - band).sum())
    return Finding(
        check, Kind.OPEN if lowest <= ours <= highest else Kind.UNEXPLAINED, clause, *seen
    )


def _presence(entries: object) -> str:
    return "absent" if entries is None else "present"


def _entry(side: Side, row: int) -> str:
    assert side.gathered is not None
    ids, values = side.gathered.ids[row].tolist(), side.gathered.values[row].tolist()
    return f"ids {ids}, values {values}, rank {int(side.gathered.ranks[row])}"


def _largest_difference(one: Tensor, other: Tensor) -> str:
    """Return the place and value where two rows differ most, as the first of them has it."""
    differs = one != other
    if not differs.any():
        return ""
    apart = torch.where(differs, (one - other).abs().nan_to_num(torch.inf), 0.0)
    at = int(apart.argmax())
    return f"id {at}: {one[at].item()!r}"
