"""Rows by shape of danger: what breaks filters, races and reductions, written down as recipes.

Every row has a few *live* ids, the ones that requests are then made to be about: a bias on an id that
nobody could draw anyway shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from refsampler.conformance.logits import RowRecipe

__all__ = ["COLD", "DANGERS", "LAWLESS", "LiveRow", "live_row"]

COLD: Final = 2.0**-9
"""A temperature at which 3/4 of a nat becomes 384: the row has one id, whatever the noise."""

_CLEAR: Final = (4.0, 3.0, 2.25, 1.25)
_EDGES: Final = (31, 32, 33, 63, 64, 127, 128, 129, 255, 256, 257, 511, 512, 1023, 1024)


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A row and what its requests can be about.

    Attributes:
        recipe: of the logits.
        ids: live ids, the most probable first.
        values: their logits.
        lone: nothing outside the live ids has a probability worth a draw, so that cumulative masses
            of the live ids are those of the row.

    """

    recipe: RowRecipe
    ids: tuple[int, ...]
    values: tuple[float, ...]
    lone: bool = False


_Danger = Callable[[Random, int], LiveRow]


def live_row(danger: str, rng: Random, vocab: int) -> LiveRow:
    """Return a row of that danger (a name of `DANGERS` or `LAWLESS`)."""
    return _ALL[danger](rng, vocab)


def _some(rng: Random, vocab: int, most: int) -> tuple[int, ...]:
    """Return so many distinct ids at most; the ends of the vocabulary and block edges come often."""
    count = min(most, vocab)
    ends = [0, vocab - 1, *(edge for edge in _EDGES if edge < vocab)]
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        token = rng.choice(ends) if rng.random() < 0.3 else rng.randrange(vocab)
        chosen.setdefault(token)
    return tuple(chosen)


def _named(
    ids: tuple[int, ...], values: tuple[float, ...], base: float, *, lone: bool = False
) -> LiveRow:
    """Return the row of these values over a constant base; the live ids are sorted by value."""
    values = values[: len(ids)]
    ranked = sorted(zip(values, ids, strict=True), key=lambda one: -one[0])
    recipe = RowRecipe(base=base, ids=ids, values=values)
    return LiveRow(recipe, tuple(it for _, it in ranked), tuple(x for x, _ in ranked), lone)


def _clear(rng: Random, vocab: int) -> LiveRow:
    """Four ids of clearly different values, in numbers that are exact through every step."""
    lift = rng.choice((0.0, 0.0, -6.0, 8.0))
    values = tuple(one + lift for one in _CLEAR)
    base = rng.choice((-8.0 + lift, -math.inf, lift))
    return _named(_some(rng, vocab, 4), values, base, lone=base == -math.inf)


def _few(rng: Random, vocab: int) -> LiveRow:
    """Two to four finite ids of like probability: each has to come in a batch of copies."""
    ids = _some(rng, vocab, rng.choice((2, 3, 3, 4, 4)))
    values = tuple(rng.randrange(0, 10) / 16 for _ in ids)
    return _named(ids, values, -math.inf, lone=True)


def _plateau(rng: Random, vocab: int) -> LiveRow:
    """Equal values, a power of two of them, so that their masses are exact; k and p cut across."""
    count = min(2 ** rng.randint(1, 4), vocab)
    ids = _some(rng, vocab, count)
    values = [0.0] * len(ids)
    if rng.random() < 0.4:
        values[0] = 2.0
    return _named(ids, tuple(values), -math.inf, lone=True)


def _tied(rng: Random, vocab: int) -> LiveRow:
    """A few levels that many ids share, over a low background."""
    levels = [rng.randrange(-64, 64) / 16 for _ in range(3)]
    ids = _some(rng, vocab, 9)
    values = tuple(rng.choice(levels) for _ in ids)
    return _named(ids, values, rng.choice((-math.inf, -20.0, min(levels))))


def _huge(rng: Random, vocab: int) -> LiveRow:
    """Gaps and sizes at the ends of half precision."""
    ids = _some(rng, vocab, 5)
    sizes = (65504.0, -65504.0, 1000.0, -1000.0, 88.0, -88.0, 0.0, 60000.0)
    return _named(ids, tuple(rng.choice(sizes) for _ in ids), rng.choice((-math.inf, 0.0, -1000.0)))


def _tiny(rng: Random, vocab: int) -> LiveRow:
    """Subnormal and signed zero values."""
    ids = _some(rng, vocab, 6)
    sizes = (1e-40, -1e-40, 1e-45, 0.0, -0.0, 1e-30)
    return _named(ids, tuple(rng.choice(sizes) for _ in ids), rng.choice((0.0, -math.inf, -1.0)))


def _near(rng: Random, vocab: int) -> LiveRow:
    """Maxima that differ by a unit in the last place of half or of single precision."""
    top = rng.choice((1.0, 16.0, -3.0))
    step = abs(top) * rng.choice((2.0**-7, 2.0**-10, 2.0**-20))
    ids = _some(rng, vocab, 5)
    return _named(ids, tuple(top - step * place for place in range(5)), rng.choice((-8.0, top - 1)))


def _lattice(rng: Random, vocab: int) -> LiveRow:
    """Values on the grid of a half-precision exponent, many of them equal."""
    step = rng.choice((0.125, 0.5, 2.0))
    ids = _some(rng, vocab, 10)
    values = tuple(step * rng.randrange(0, 6) for _ in ids)
    return _named(ids, values, rng.choice((-math.inf, 0.0)))


def _zipf(rng: Random, vocab: int) -> LiveRow:
    """What a language model gives: a long tail, and a few ids that stand out."""
    recipe = RowRecipe(shape="zipf", seed=rng.getrandbits(31), scale=rng.choice((1.0, 0.5, 2.0)))
    ids = _some(rng, vocab, rng.randint(1, 4))
    values = tuple(2.0 - 0.75 * place for place in range(len(ids)))
    return LiveRow(replace(recipe, ids=ids, values=values), ids, values)


def _bell(rng: Random, vocab: int) -> LiveRow:
    """A background of sums, with two peaks above it."""
    recipe = RowRecipe(shape="bell", seed=rng.getrandbits(31), scale=rng.choice((0.25, 1.0, 16.0)))
    ids = _some(rng, vocab, 2)
    values = (5 * recipe.scale, 4.5 * recipe.scale)[: len(ids)]
    return LiveRow(replace(recipe, ids=ids, values=values), ids, values)


def _flat(rng: Random, vocab: int) -> LiveRow:
    """Equal logits everywhere."""
    ids = _some(rng, vocab, 4)
    level = rng.choice((0.0, 0.0, -3.0, 7.0))
    return LiveRow(RowRecipe(base=level), ids, (level,) * len(ids))


def _padded(rng: Random, vocab: int) -> LiveRow:
    """A vocabulary whose end is padding."""
    real = max(1, vocab - rng.randint(1, max(1, vocab // 3)))
    ids = _some(rng, real, 4)
    values = tuple(_CLEAR[: len(ids)])
    padding = tuple(range(real, vocab))
    recipe = RowRecipe(
        base=-8.0, ids=(*ids, *padding), values=(*values, *(-math.inf for _ in padding))
    )
    return LiveRow(recipe, ids, values)


def _nan(rng: Random, vocab: int) -> LiveRow:
    """A number that is none beside ordinary ones."""
    ids = _some(rng, vocab, 3)
    return _named(ids, (math.nan, 1.0, 0.5), 0.0)


def _infinite(rng: Random, vocab: int) -> LiveRow:
    """Plus infinity."""
    ids = _some(rng, vocab, 3)
    return _named(ids, (math.inf, 1.0, 0.5), 0.0)


def _empty(_rng: Random, vocab: int) -> LiveRow:
    """Nothing finite."""
    return LiveRow(RowRecipe(base=-math.inf), (0,), (-math.inf,)) if vocab else _flat(_rng, vocab)


DANGERS: Final[dict[str, _Danger]] = {
    "clear": _clear,
    "few": _few,
    "plateau": _plateau,
    "ties": _tied,
    "huge": _huge,
    "tiny": _tiny,
    "near": _near,
    "lattice": _lattice,
    "zipf": _zipf,
    "bell": _bell,
    "flat": _flat,
    "padded": _padded,
}
"""Rows that have a law."""

LAWLESS: Final[dict[str, _Danger]] = {"nan": _nan, "infinite": _infinite, "empty": _empty}
"""Rows that have none: any id in range, or an error that names them."""

_ALL: Final = {**DANGERS, **LAWLESS}
