"""Judge one batch: every comparison agrees, is left open by a clause, departs, or is unexplained.

*Open* means that the clause itself allows both results: a choice among equal logits, or values
closer than float32 can tell apart; the exact law of `refsampler.law` decides that.  *Departs* means
that the clause's `departs` says that vLLM does otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from refsampler.law import target_law
from refsampler.request import Request
from tests.vllm_parity.compare_logprobs import gathered, whole
from tests.vllm_parity.findings import ROUNDING, Batch, Finding, Kind
from tests.vllm_parity.sides import LogprobsMode, Side

__all__ = ["compare"]


def compare(
    logits: Tensor, requests: tuple[Request, ...], mode: LogprobsMode, ours: Side, real: Side
) -> tuple[Finding, ...]:
    """Compare the two sides of a batch with each other and with the exact law."""
    greedy = tuple(replace(one, params=replace(one.params, temperature=0.0)) for one in requests)
    laws = target_law(logits, requests), target_law(logits, greedy)
    return tuple(_comparisons(Batch(logits, requests, mode, ours, real, *laws)))


def _comparisons(batch: Batch) -> Iterator[Finding]:
    yield _form(batch)
    yield _untouched(batch)
    for row, request in enumerate(batch.requests):
        yield _before_filters(batch, row)
        yield _greedy(batch, row)
        if not batch.law.valid[row]:
            yield _without_law(batch, row)
        elif not request.params.greedy:
            yield _kept(batch, row)
            yield _processed(batch, row)
            yield _drawn_float64(batch, row)
            yield _drawn_float32(batch, row)
        yield whole(batch, row)
    yield from gathered(batch)


def _form(batch: Batch) -> Finding:
    """Return whether ids have vLLM's shape and dtype (`output.form`)."""
    ours, real = (f"{list(s.ids.shape)} {s.ids.dtype}" for s in (batch.ours, batch.real))
    kind = Kind.AGREES if ours == real else Kind.UNEXPLAINED
    return Finding("shape and dtype of ids", kind, "output.form", None, ours, real)


def _untouched(batch: Batch) -> Finding:
    """Return whether the caller's logits were left alone (`input.untouched`)."""
    check, clause = "caller's logits untouched", "input.untouched"
    if batch.ours.mutated:
        return Finding(check, Kind.UNEXPLAINED, clause, None, "overwritten", "")
    if not batch.real.mutated:
        return Finding(check, Kind.AGREES)
    kind = Kind.DEPARTS if batch.logits.dtype == torch.float32 else Kind.UNEXPLAINED
    return Finding(check, kind, clause, None, "untouched", "overwritten")


def _before_filters(batch: Batch, row: int) -> Finding:
    """Return whether steps 3 to 6 gave the same float32 numbers (`order.pipeline`)."""
    check = "logits after step 6, equal"
    ours, real = batch.ours.before_filters[row], batch.real.before_filters[row]
    if torch.equal(ours, real):
        return Finding(check, Kind.AGREES)
    request = batch.requests[row]
    differs = (ours != real).nonzero().flatten().tolist()
    # the last bit of x / r, beside frequency and presence terms of at most 2 an occurrence
    slack = ROUNDING * (2 * len(request.output) + 2)
    excused = (
        batch.rounded_repetition(row)
        and set(differs) <= {*request.prompt, *request.output}
        and torch.allclose(ours, real, rtol=ROUNDING, atol=slack)
    )
    kind, clause = (
        (Kind.DEPARTS, "penalty.repetition") if excused else (Kind.UNEXPLAINED, "order.pipeline")
    )
    at = differs[0]
    shown = (f"id {at}: {values[at].item()!r}" for values in (ours, real))
    return Finding(check, kind, clause, row, *shown)


def _greedy(batch: Batch, row: int) -> Finding:
    """Return whether the row, taken greedily, gives the same id (`greedy.argmax`)."""
    check = "greedy id"
    ours, real = (int(side.greedy_ids[row]) for side in (batch.ours, batch.real))
    if batch.requests[row].params.greedy:
        mixed = [int(side.ids[row]) for side in (batch.ours, batch.real)]
        if mixed != [ours, real]:
            return Finding(
                check, Kind.UNEXPLAINED, "greedy.mixed", row, f"{ours, real}", f"{mixed}"
            )
    admissible = batch.greedy_law.admissible[row]
    shown = (row, f"{ours} of {_ids(admissible)}", str(real))
    outside = batch.greedy_law.valid[row] and not (admissible[ours] and admissible[real])
    if outside:
        return Finding(check, Kind.UNEXPLAINED, "greedy.argmax", *shown)
    if ours == real:
        return Finding(check, Kind.AGREES)
    kind = Kind.OPEN if batch.greedy_law.valid[row] else Kind.UNEXPLAINED
    return Finding(check, kind, "greedy.argmax", *shown)


def _without_law(batch: Batch, row: int) -> Finding:
    """Return whether a row with an empty support gives the same id (`mask.empty`)."""
    ours, real = (int(side.ids[row]) for side in (batch.ours, batch.real))
    kind = Kind.AGREES if ours == real else Kind.UNEXPLAINED
    return Finding("id of a row without a law", kind, "mask.empty", row, str(ours), str(real))


def _kept(batch: Batch, row: int) -> Finding:
    """Return whether both kept sets lie between core and hull, and whether they are equal."""
    ours, real = (_ids(side.processed[row].isfinite()) for side in (batch.ours, batch.real))
    core, hull = _ids(batch.law.core[row]), _ids(batch.law.hull[row])
    expected = f"{ours}; core {core}, hull {hull}"
    return Finding("kept set, core <= both <= hull", *batch.kept_sets(row), row, expected, real)


def _processed(batch: Batch, row: int) -> Finding:
    """Return whether the ids that both kept have the same logits (`temperature.scale`)."""
    check = "logits of ids that both kept"
    both = batch.ours.processed[row].isfinite() & batch.real.processed[row].isfinite()
    ours, real = (side.processed[row][both] for side in (batch.ours, batch.real))
    if torch.equal(ours, real):
        return Finding(check, Kind.AGREES)
    apart = (ours - real).abs()
    close = bool((apart <= batch.rounding(row) + ROUNDING * ours.abs()).all())
    kind, clause = (
        (Kind.DEPARTS, "penalty.repetition")
        if close and batch.rounded_repetition(row)
        else (Kind.UNEXPLAINED, "temperature.scale")
    )
    at = int(apart.argmax())
    return Finding(check, kind, clause, row, repr(ours[at].item()), repr(real[at].item()))


def _drawn_float64(batch: Batch, row: int) -> Finding:
    """Return whether a seeded row gives the same id under the race in float64."""
    ids = int(batch.ours.ids_float64[row]), int(batch.real.ids_float64[row])
    if batch.requests[row].params.seed is None:
        return _possible(batch, row, "unseeded id kept, float64 race", ids)
    return _seeded(batch, row, "seeded id, float64 race", ids, torch.float64)


def _drawn_float32(batch: Batch, row: int) -> Finding:
    """Return whether a seeded row gives the same id under vLLM's default race in float32."""
    ids = int(batch.ours.ids[row]), int(batch.real.ids[row])
    if batch.requests[row].params.seed is None:
        return _possible(batch, row, "unseeded id kept, float32 race", ids)
    if all(one.params.seed is not None for one in batch.requests):
        check = "seeded id, float32 race, every row seeded"
        return _seeded(batch, row, check, ids, torch.float32)
    possible = _possible(batch, row, "seeded id, float32 race, some rows seeded", ids)
    if possible.kind is Kind.UNEXPLAINED or ids[0] == ids[1]:
        return possible
    return replace(possible, kind=Kind.DEPARTS, clause="seed.reproducible")


def _possible(batch: Batch, row: int, check: str, ids: tuple[int, int]) -> Finding:
    """Return whether each side kept the id that it drew (`draw.support`)."""
    kept = [
        bool(side.processed[row].isfinite()[drawn])
        for side, drawn in zip((batch.ours, batch.real), ids, strict=True)
    ]
    kind = Kind.AGREES if all(kept) else Kind.UNEXPLAINED
    return Finding(check, kind, "draw.support", row, str(ids[0]), str(ids[1]))


def _seeded(
    batch: Batch, row: int, check: str, ids: tuple[int, int], dtype: torch.dtype
) -> Finding:
    """Return whether the ids are equal, or a tie of the race, or follow from the kept sets."""
    possible = _possible(batch, row, check, ids)
    if possible.kind is Kind.UNEXPLAINED or ids[0] == ids[1]:
        return possible
    kept, clause = batch.kept_sets(row)
    if kept is not Kind.AGREES:
        return replace(possible, kind=kept, clause=clause)
    near = _lead(batch, row, ids, dtype) <= 2 * batch.rounding(row)
    return replace(possible, kind=Kind.OPEN if near else Kind.UNEXPLAINED, clause="seed.batch")


def _lead(batch: Batch, row: int, ids: tuple[int, int], dtype: torch.dtype) -> float:
    """Return how far apart two ids are in the race, in nats, computed in float64."""
    seed = batch.requests[row].params.seed
    assert seed is not None
    noise = torch.empty(batch.logits.shape[1], dtype=dtype)
    noise = noise.exponential_(generator=torch.Generator().manual_seed(seed))
    score = batch.real.processed[row].double() - noise.double().log()
    return abs(float(score[ids[0]] - score[ids[1]]))


def _ids(mask: Tensor) -> str:
    """Return the ids of a mask, shortened."""
    ids = mask.nonzero().flatten().tolist()
    return f"{ids[:12]} and {len(ids) - 12} more" if len(ids) > 12 else f"{ids}"
