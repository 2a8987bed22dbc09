"""Batches: rows beside unlike neighbours, permuted, and in every size at which paths change."""

from __future__ import annotations

from typing import Any

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import Row, batch, flat, masses, peak, request, row
from refsampler.conformance.logits import RowRecipe
from refsampler.conformance.subject import derived_seed

__all__ = [
    "flat_size_cases",
    "isolation_cases",
    "seed_batch_cases",
    "seed_effect_cases",
    "seed_repeat_cases",
    "size_cases",
    "wide_repeat_case",
]

_WIDE = 152_064
_SIZES = (1, 2, 7, 8, 9, 257)
_FLAT_CALLS = 40
"""Of 40 draws of a row by itself some 35 give another id than one that a batch repeats."""


def _unlike() -> list[Row]:
    """Return rows whose supports are disjoint or differ, so that a neighbour's shows at once."""
    return [
        (row({0: 0.0, 1: -0.01}), request()),
        (row({2: 0.0, 3: -0.01, 4: -0.02, 5: -0.03}), request(top_k=2)),
        (row({2: 0.0, 3: -0.01, 4: -0.02, 5: -0.03}), request(top_k=3)),
        (masses({6: 0.48, 7: 0.32, 8: 0.2}), request(top_p=0.6)),
        (masses({6: 0.48, 7: 0.32, 8: 0.2}), request(top_p=0.3)),
        (masses({9: 0.6, 10: 0.3, 11: 0.1}), request(min_p=0.38)),
        (masses({9: 0.6, 10: 0.3, 11: 0.1}), request(min_p=0.38, temperature=2.0)),
        (peak(12, seed=3), request(temperature=0.0)),
        (masses({3: 0.4, 1: 0.3, 9: 0.2, 0: 0.1}), request(top_k=2, top_p=0.5)),
        (peak(12, seed=4), request(temperature=2.0)),
        (RowRecipe(ids=(5,), values=(-0.5,)), request()),
    ]


def isolation_cases() -> tuple[Case, ...]:
    """Return batches in which every row has other parameters than its neighbours."""
    rows = _unlike()
    # four ids, of which a row that asks for nothing must give every one
    steps = row({2: 0.0, 3: -0.01, 4: -0.02, 5: -0.03})
    clauses = ("batch.isolation",)
    woven = [one for pair in zip(rows, rows[::-1], strict=True) for one in pair]
    return (
        batch(13, rows * 8, "batch.isolation", calls=12),
        batch(13, woven * 4, "batch.isolation", calls=12),
        *(
            batch(13, [(steps, request(**asked))] * 8 + [(steps, request())] * 128, *clauses)
            for asked in ({"top_k": 1}, {"top_p": 0.1}, {"min_p": 1.0}, {"temperature": 1e-3})
        ),
    )


def size_cases(capabilities: Capabilities) -> tuple[Case, ...]:
    """Return the same rows in batches of 1 to 257, and around declared thresholds."""
    rows = _unlike()
    return tuple(
        batch(
            13,
            [rows[(place + size) % len(rows)] for place in range(size)],
            "batch.size",
            calls=max(2, min(32, 256 // size)),
        )
        for size in _sizes(capabilities)
    )


def flat_size_cases(capabilities: Capabilities) -> tuple[Case, ...]:
    """Return equal flat rows in batches of 2 to 257, and around declared thresholds."""
    return tuple(
        batch(8, [(flat(), request())] * size, "batch.size", calls=_FLAT_CALLS)
        for size in _sizes(capabilities)
        if size > 1
    )


def _sizes(capabilities: Capabilities) -> list[int]:
    near = {t + step for t in capabilities.thresholds for step in (-1, 0, 1)}
    return sorted({*_SIZES, *(size for size in near if 0 < size <= 4096)})


def _live(count: int, seed: int) -> RowRecipe:
    """Return `count` live ids among 509, nearly equally likely, none at its rank."""
    ids = [(31 * place + 7 * seed) % 509 for place in range(count)]
    return row({token: -place / 256 for place, token in enumerate(ids)})


def seed_repeat_cases(run_seed: int) -> tuple[Case, ...]:
    """Return seeded rows with every filter; seeds at both ends of their range are among them."""
    base = derived_seed(run_seed, "seeds")
    asks: tuple[dict[str, Any], ...] = (
        {},
        {"top_k": 20},
        {"top_p": 0.8},
        {"min_p": 0.9, "temperature": 0.7},
    )
    seeds = [base + place for place in range(28)] + [0, 1, 2**63 - 1, 2**64 - 2]
    rows: list[Row] = [
        (_live(48, place % 5), request(seed=seed, **asks[place % 4]))
        for place, seed in enumerate(seeds)
    ]
    return (batch(509, rows, "seed.reproducible", "determinism.repeat"),)


def wide_repeat_case(run_seed: int, calls: int) -> Case:
    """Return seeded rows so wide that a kernel shares a row out, under top-k, asked again."""
    base = derived_seed(run_seed, "wide")
    rows: list[Row] = [
        (RowRecipe(shape="bell", seed=place), request(seed=base + place, top_k=50))
        for place in range(4)
    ]
    return batch(_WIDE, rows, "determinism.repeat", calls=calls)


def seed_batch_cases(run_seed: int) -> tuple[Case, ...]:
    """Return seeded rows between unseeded and greedy neighbours of other parameters."""
    base = derived_seed(run_seed, "neighbours")
    rows: list[Row] = []
    for place in range(24):
        rows.append((_live(40, place), request(seed=base + place, top_k=(0, 30)[place % 2])))
        rows.append(_neighbour(place))
    return (batch(509, rows, "seed.batch"), batch(509, rows[::2], "seed.batch"))


def _neighbour(place: int) -> Row:
    return (
        (flat(), request()),
        (peak(508, seed=place), request(temperature=0.0)),
        (_live(60, place), request(top_p=0.5, temperature=1.5)),
        (flat(), request(top_k=3, min_p=0.2)),
    )[place % 4]


def seed_effect_cases(capabilities: Capabilities, run_seed: int) -> tuple[Case, ...]:
    """Return equal flat rows with consecutive seeds, and unseeded rows between seeded ones."""
    base = derived_seed(run_seed, "effect")
    seeded: list[Row] = [(flat(), request(seed=base + place)) for place in range(16)]
    same: list[Row] = [(flat(), request(seed=base)) for _ in range(8)]
    fresh: list[Row] = [(flat(), request()) for _ in range(16)]
    cases = [batch(4096, fresh, "seed.effect", calls=2)]
    if Feature.SEED in capabilities.features:
        mixed = [one for pair in zip(seeded, fresh, strict=True) for one in pair]
        cases += [
            batch(4096, [*seeded, *same], "seed.effect", calls=2),
            batch(4096, mixed, "seed.effect", calls=2),
        ]
    return tuple(cases)
