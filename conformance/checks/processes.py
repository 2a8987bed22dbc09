"""Two processes given the same rows and seeds: the same ids, step by step."""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
from jaxtyping import Int64

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import (
    Asked,
    Check,
    Finding,
    Kind,
    SideBySide,
    clause_ids,
)
from refsampler.conformance.designed.build import Row, batch, masses, request, row
from refsampler.conformance.series import SeriesSubject
from refsampler.conformance.subject import OpenSubject, derived_seed

__all__ = ["CHECKS", "packed", "unpacked"]

_SEEDED, _RANKS = clause_ids("seed.reproducible", "parallel.ranks")
_STEPS: Final = 8
_VOCAB: Final = 509


def packed(ids: Int64[np.ndarray, "*shape"]) -> bytes:
    """Return ids as the bytes that `Asked` carries."""
    return zlib.compress(ids.astype("<i4").tobytes())


def unpacked(packed_ids: bytes, *shape: int) -> Int64[np.ndarray, "*shape"]:
    """Return such ids in their shape, of which one number may be -1."""
    flat = np.frombuffer(zlib.decompress(packed_ids), dtype="<i4").astype(np.int64)
    return flat.reshape(shape)


def _cases(capabilities: Capabilities, run_seed: int) -> tuple[Case, ...]:
    """Return seeded rows with every filter, and ties where an id is chosen by more than its value.

    Without seeds only greedy rows must agree.  A kernel is not asked about ranks: the ids of a rank
    are its sampler's.
    """
    seedable = Feature.SEED in capabilities.features
    clauses = (_SEEDED,) * seedable + (_RANKS,) * (capabilities.level > 1)
    if not clauses:
        return ()
    base = derived_seed(run_seed, "processes")
    tied = row({(37 * place) % _VOCAB: 0.0 for place in range(40)}, base=-1.0)
    steps = masses({3: 0.25, 99: 0.25, 98: 0.25, 4: 0.125, 100: 0.125})
    near = row({(31 * place) % _VOCAB: -place / 256 for place in range(48)})
    seeded: tuple[tuple[Any, dict[str, Any]], ...] = (
        (near, {}),
        (near, {"top_k": 20}),
        (near, {"top_p": 0.8, "temperature": 0.7}),
        (near, {"min_p": 0.9}),
        (tied, {}),
        (tied, {"top_k": 10}),
        (tied, {"top_p": 0.3}),
        (steps, {"top_k": 2}),
        (steps, {"top_p": 0.5}),
    )
    rows: list[Row] = [
        (recipe, request(seed=base + place, **asked))
        for place, (recipe, asked) in enumerate(seeded * 2 * seedable)
    ]
    rows += [(recipe, request(temperature=0.0)) for recipe in (near, tied, steps)]
    if capabilities.level > 1 and seedable:
        # ranks agree on rows without a seed too: their default generators stand alike
        rows += [(near, request())] * 4
    return (batch(_VOCAB, rows, *clauses, calls=_STEPS),)


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Draw the rows step by step, from a default generator that stands alike in all processes."""
    ids = SeriesSubject(subject.backend, subject.run_seed).steps(
        case, case.calls, derived_seed(case.id)
    )
    return Asked(draws=ids.size, ids=packed(ids))


def _agree(case: Case, asked: tuple[Asked, ...]) -> Asked:
    """Compare every process with the first, id by id: nothing that they were given differs."""
    first, *others = (unpacked(one.ids, case.calls, -1) for one in asked)
    seeded = np.array([one.params.seed is not None for one in case.requests])
    findings = []
    for place, other in enumerate(others, start=2):
        differing = first != other
        for clause, rows in ((_SEEDED, seeded), (_RANKS, np.ones_like(seeded))):
            found = np.argwhere(differing & rows)
            if clause in case.clauses and len(found):
                findings.append(_difference(clause, first, other, place, found))
    return Asked(tuple(findings), sum(one.draws for one in asked))


def _difference(
    clause: ClauseId,
    first: Int64[np.ndarray, "calls rows"],
    other: Int64[np.ndarray, "calls rows"],
    place: int,
    found: Int64[np.ndarray, "found 2"],
) -> Finding:
    """Describe the first of the differences, given as [step, row]."""
    step, at = (int(one) for one in found[0])
    seen = (
        f"id {other[step, at]} in process {place}, step {step + 1}; "
        f"{len(found)} of {first.size} ids differ"
    )
    return Finding(clause, f"id {first[step, at]}, as in process 1", seen, row=at, call=step)


CHECKS: tuple[Check, ...] = (
    Check(
        "processes-agree",
        (_SEEDED, _RANKS),
        Kind.EXACT,
        _cases,
        ask=_ask,
        beside=SideBySide(lambda _case: 2, _agree),
    ),
)
