"""Temperature, min-p, top-k, top-p and their order on rows of a few ids with wide margins."""

from __future__ import annotations

from refsampler.backends.protocol import DType
from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import batch, copies, flat, masses, request, row
from refsampler.conformance.logits import RowRecipe

__all__ = [
    "min_p_cases",
    "order_cases",
    "relabel_cases",
    "temperature_cases",
    "top_k_cases",
    "top_p_cases",
]

# ids scattered, none of them at its rank
_IDS = (6, 2, 9, 0, 11, 4)
_EFFECT = "effect.parameters"


def _steps(count: int = 6) -> RowRecipe:
    """Return ids nearly equally likely, in descending steps of 2^-10."""
    return row({token: -rank / 1024 for rank, token in enumerate(_IDS[:count])})


def _scattered(*probabilities: float) -> RowRecipe:
    return masses(dict(zip(_IDS, probabilities, strict=False)))


def top_k_cases() -> tuple[Case, ...]:
    """Return k at 1, 2, 3, V-1; off in all its spellings; ties at the k-th value."""
    kept = [
        copies(12, _steps(), request(top_k=k), "top-k.keep", _EFFECT, count=256) for k in (1, 2, 3)
    ]
    # every id alive: a kernel that stops one short, or one late, at the vocabulary's end
    ladder = RowRecipe(ids=tuple(range(5)), values=tuple(-token / 1024 for token in range(5)))
    kept += [copies(5, ladder, request(top_k=4), "top-k.keep", count=256)]
    # ties above the k-th value: a sort that loses ids among equals loses some that must stay
    level = row({token: 2.0 - token % 2 for token in range(10, 90)})
    kept += [copies(100, level, request(top_k=60), "top-k.keep", count=2304)]
    # the k-th value is the row's smallest: a search for a threshold that begins there and keeps what
    # lies above it keeps less than k
    low = row({0: 1.0, 1: 0.9, 2: 0.8})
    kept += [copies(32, low, request(top_k=3), "top-k.keep", count=256)]
    off = [copies(5, ladder, request(top_k=k), "top-k.off", count=256) for k in (0, -1, 5, 6, 1000)]
    # 2^31 - 1 is how clients write "no limit"
    off += [copies(5, ladder, request(top_k=2**31 - 1), "top-k.off", count=256)]
    tied = row({6: 1.0, 2: 0.5, 9: 0.5, 0: 0.5, 11: -4.0})
    ties = [copies(12, tied, request(top_k=k), "top-k.ties", count=256) for k in (2, 3, 4)]
    ties += [copies(8, flat(), request(top_k=3), "top-k.ties", count=256)]
    # so near each other that no temperature explains the loss
    low = row({0: 0.0, 1: -(2.0**-10), 2: -(2.0**-9), 3: -(2.0**-9)})
    ties += [copies(32, low, request(top_k=3), "top-k.ties", count=256)]
    return (*kept, *off, *ties)


def top_p_cases() -> tuple[Case, ...]:
    """Return prefixes that end with a margin, p = 1, tiny p, and ties at the boundary."""
    kept = [
        copies(12, _scattered(0.48, 0.32, 0.2), request(top_p=0.6), "top-p.keep", _EFFECT),
        copies(12, _scattered(0.605, 0.395), request(top_p=0.60), "top-p.keep", _EFFECT),
        copies(12, _scattered(0.4, 0.3, 0.2, 0.1), request(top_p=0.85), "top-p.keep", _EFFECT),
        copies(12, _scattered(0.4, 0.35, 0.25), request(top_p=1e-6), "top-p.keep", _EFFECT),
        copies(12, _scattered(0.3, 0.3, 0.4), request(top_p=0.05), "top-p.keep", _EFFECT),
    ]
    off = [
        copies(5, RowRecipe(), request(top_p=1.0), "top-p.off", count=256),
        # beside a row that has a p, so that the kernel runs
        copies(12, _scattered(0.4, 0.35, 0.25), request(top_p=1.0), "top-p.off"),
        # the largest float32 below 1, which a float32 running sum need not reach
        batch(
            32000,
            [
                *(
                    (RowRecipe(shape="bell", seed=seed, scale=0.25), request(top_p=1 - 2.0**-24))
                    for seed in range(7, 13)
                ),
                (_scattered(0.48, 0.32, 0.2), request(top_p=0.6)),
            ],
            "top-p.off",
        ),
    ]
    ties = [
        # whose masses are exact, so that a kernel that shows what it kept shows where it stops
        copies(4, flat(), request(top_p=0.5), "top-p.ties", "top-p.keep"),
        copies(16, flat(), request(top_p=0.25), "top-p.ties", "top-p.keep"),
        copies(12, _scattered(0.5, 0.125, 0.125, 0.125, 0.125), request(top_p=0.7), "top-p.ties"),
    ]
    return (*kept, *off, *ties)


def min_p_cases() -> tuple[Case, ...]:
    """Return relative, not absolute, thresholds, after temperature."""
    return (
        copies(12, _scattered(0.4, 0.3, 0.3), request(min_p=0.5), "min-p.keep"),
        copies(12, _scattered(0.6, 0.3, 0.1), request(min_p=0.38), "min-p.keep", _EFFECT),
        copies(12, _scattered(0.6, 0.3, 0.1), request(min_p=0.6), "min-p.keep", _EFFECT),
        copies(12, _scattered(0.4, 0.35, 0.25), request(min_p=1.0), "min-p.keep", _EFFECT),
        copies(5, RowRecipe(), request(min_p=0.0), "min-p.keep", count=256),
        copies(
            12,
            _scattered(0.6, 0.3, 0.1),
            request(min_p=0.38, temperature=2.0),
            "order.pipeline",
            "min-p.keep",
            count=256,
        ),
        copies(
            12,
            _scattered(0.6, 0.3, 0.1),
            request(min_p=0.38, temperature=0.5),
            "order.pipeline",
            "min-p.keep",
        ),
    )


def temperature_cases(dtypes: frozenset[DType]) -> tuple[Case, ...]:
    """Return rows where the temperature decides who survives, or who wins by more than 35 nats."""
    flatten = request(temperature=2.0, top_p=0.85)
    sharpen = request(temperature=0.5, top_p=0.7)
    cold = request(temperature=0.02)
    row_ = _scattered(0.6, 0.3, 0.1)
    scale = ("temperature.scale", _EFFECT)
    near = row({6: 1.0, 2: 0.0, 9: 0.5}, base=-4.0)
    lowest = row({6: 1.0, 2: 0.9990234375}, base=-4.0)
    # of which a half-precision quotient by the temperature overflows
    high = row({2: 11.1, 0: 2.9, 1: 3.0}, base=-2.4)
    halves = [
        batch(12, [(high, request(temperature=t)) for t in (1e-2, 1e-3, 1e-4, 1e-5)], *scale[:1],
              dtype=dtype)
        for dtype in (DType.FLOAT16, DType.BFLOAT16)
        if dtype in dtypes
    ]  # fmt: skip
    return (
        copies(12, row_, flatten, *scale, count=256),
        copies(12, row_, sharpen, *scale),
        copies(12, near, request(temperature=0.0125), *scale),
        copies(12, row({6: 1.0, 2: 0.0}, base=-4.0), cold, *scale),
        copies(12, lowest, request(temperature=1e-5), *scale),
        # a constant added to a row changes nothing, whatever an exponential makes of it
        *(copies(5, RowRecipe(base=c), request(), *scale[:1], count=256) for c in (1e3, -1e3)),
        *halves,
    )


def order_cases() -> tuple[Case, ...]:
    """Return rows on which top-p before top-k, or p measured jointly, keeps other ids."""
    order = "order.pipeline"
    return (
        # after k = 2 the first id holds 0.571 of the rest: p = 0.5 ends there
        copies(12, _scattered(0.4, 0.3, 0.2, 0.1), request(top_k=2, top_p=0.5), order),
        # after k = 3 the masses are .444, .333, .222: p = .7 ends with the second
        copies(12, _scattered(0.4, 0.3, 0.2, 0.1), request(top_k=3, top_p=0.7), order),
        copies(12, _scattered(0.45, 0.3, 0.15, 0.1), request(top_k=2, top_p=0.7), order),
        # temperature comes first: at T = 2 the masses are .396 .343 .261, of which k = 2 leaves
        # .536 .464, hence p = .55 both; at T = 1 it would be .571 .429, hence one
        copies(
            12,
            _scattered(0.48, 0.36, 0.16),
            request(temperature=2.0, top_k=2, top_p=0.55),
            order,
        ),
        # at T = 1/2 the masses are .598 .336 .066, of which p = .55 leaves one, p = .9 two; of those at
        # T = 1 it would be two and three
        copies(12, _scattered(0.48, 0.36, 0.16), request(temperature=0.5, top_p=0.55), order),
        copies(12, _scattered(0.48, 0.36, 0.16), request(temperature=0.5, top_p=0.9), order),
        # and min-p before top-p: of .6 .3 .1 it leaves .667 .333, whose first is beyond p = .62
        copies(12, _scattered(0.6, 0.3, 0.1), request(min_p=0.4, top_p=0.62), order),
    )


def relabel_cases() -> tuple[Case, ...]:
    """Return all mass on one id, or on two, wherever that id lies: no id is special."""
    ends = {1: (0,), 2: (0, 1), 33: (0, 31, 32), 129: (127, 128), 1025: (0, 1023, 1024)}
    single = [
        copies(vocab, row({token: 40.0}, base=-4.0), request(), "relabel.equivariance", count=16)
        for vocab, tokens in ends.items()
        for token in tokens
    ]
    double = [
        copies(vocab, row({tokens[0]: 0.0, tokens[-1]: 0.0}), request(), "relabel.equivariance")
        for vocab, tokens in ends.items()
        if len(tokens) > 1
    ]
    # rising and falling with the id: what is cut in the order of ids shows in one of the two
    up, down = {3: 0.1, 5: 0.2, 7: 0.3, 8: 0.4}, {3: 0.4, 5: 0.3, 7: 0.2, 8: 0.1}
    cut = [
        copies(12, masses(one), request(**asked), "relabel.equivariance", count=256)
        for one in (up, down)
        for asked in ({"top_p": 0.55}, {"top_k": 2})
    ]
    large = copies(
        32769, row({0: 60.0, 32768: 60.0}, base=0.0), request(), "relabel.equivariance", count=64
    )
    return (*single, *double, *cut, large)
