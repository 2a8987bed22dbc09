"""Greedy rows: maxima at ids where kernels change blocks, planted ties, the threshold, mixtures."""

from __future__ import annotations

from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import batch, masses, peak, request, row
from refsampler.conformance.logits import RowRecipe

__all__ = ["argmax_cases", "mixed_cases", "threshold_cases", "tie_cases"]

_GREEDY = request(temperature=0.0)
_BLOCKS = {
    33: (0, 1, 31, 32),
    130: (0, 1, 127, 128, 129),
    1026: (0, 1, 1023, 1024, 1025),
    32770: (0, 1, 32767, 32768, 32769),
}


def argmax_cases() -> tuple[Case, ...]:
    """Return rows whose maximum leads clearly, or by one step of bfloat16, at every block edge."""
    wide = [
        batch(vocab, [(peak(token, seed=token + 2), _GREEDY) for token in ids], "greedy.argmax")
        for vocab, ids in _BLOCKS.items()
    ]
    narrow = [
        batch(
            vocab,
            [(row({token: 1.0078125}, base=1.0), _GREEDY) for token in ids],
            "greedy.argmax",
        )
        for vocab, ids in _BLOCKS.items()
    ]
    negative = batch(
        33, [(row({token: -1.0}, base=-5.0), _GREEDY) for token in (0, 31, 32)], "greedy.argmax"
    )
    return (*wide, *narrow, negative)


def tie_cases() -> tuple[Case, ...]:
    """Return equal maxima inside a block, across blocks and over the whole row."""
    pairs = {8: (2, 5), 130: (3, 128), 1026: (1023, 1025), 32770: (7, 32769)}
    planted = [
        batch(vocab, [(row({first: 9.0, last: 9.0}, base=0.0), _GREEDY)], "greedy.tie")
        for vocab, (first, last) in pairs.items()
    ]
    # id 0 is no tie-break: the lowest of the maxima is another one
    flat = batch(257, [(RowRecipe(ids=(0,), values=(-1.0,)), _GREEDY)], "greedy.tie")
    # beside random rows, where a greedy one may be drawn at a tiny temperature
    tied = (row({2: 1.0, 5: 1.0}, base=0.0), _GREEDY)
    random = (row({3: 1.0, 6: 1.0}, base=0.0), request(temperature=0.7))
    mixed = batch(8, [tied, random] * 64, "greedy.tie")
    return (*planted, flat, mixed)


def threshold_cases() -> tuple[Case, ...]:
    """Return temperatures on either side of 1e-5, where a tie shows which of the two it is.

    At 1e-5 two equal maxima are drawn with probability 1/2 each; just below, the lowest id comes.
    """
    tied = row({2: 1.0, 5: 1.0}, base=0.0)
    drawn = batch(8, [(tied, request(temperature=1e-5))] * 64, "greedy.threshold")
    taken = batch(8, [(tied, request(temperature=9.9e-6))] * 64, "greedy.threshold")
    # used exactly: 1e-3 apart at T = 1e-4 is 10 nats, at T = 1e-2 it would be 0.1
    exact = batch(
        8, [(row({2: 1.0, 5: 0.5}, base=-9.0), request(temperature=5e-3))] * 64, "greedy.threshold"
    )
    # 0.0205 apart at T = 5e-4 is 41 nats, raised to 1e-2 it would be 2
    raised = batch(
        8,
        [(row({2: 0.0205, 5: 0.0}, base=-9.0), request(temperature=5e-4))] * 64,
        "greedy.threshold",
    )
    # and above: 0.8 apart at T = 0.7 leaves 0.24, at T = 2 0.40, at T = 0.02 it would be 40 nats;
    # with a k, so that no filter is off
    kept = row({2: 0.8, 5: 0.0}, base=-99.0)
    hot = [
        batch(8, [(kept, request(temperature=t, top_k=2))] * 256, "greedy.threshold")
        for t in (0.7, 2.0)
    ]
    return (drawn, taken, exact, raised, *hot)


def mixed_cases() -> tuple[Case, ...]:
    """Return greedy rows between random ones with every filter, first, last and in the middle."""
    random = (masses({1: 0.5, 6: 0.5}), request(temperature=0.7, top_k=2, top_p=0.9))
    hot = (peak(3), request(temperature=2.0, min_p=0.5))
    greedy = [(peak(token, lead=1.0, seed=9), _GREEDY) for token in (0, 5, 7)]
    order = [greedy[0], random, hot, greedy[1], random, greedy[2]]
    alone = [batch(8, [one], "greedy.mixed", "greedy.argmax") for one in greedy]
    both = ("greedy.mixed", "greedy.argmax")
    return (batch(8, order, *both), batch(8, order[::-1], *both), *alone)
