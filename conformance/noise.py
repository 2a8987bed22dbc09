"""Noise of choice: a torch generator on the CPU whose next words are given ones.

A backend that draws from the generators it is handed then meets the ends of its noise at once, which
real draws reach once in 2^24 or 2^32.  Any words are a state that the Mersenne twister can be in.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from jaxtyping import UInt32

__all__ = ["MOST_WORDS", "generator_giving"]

_WORDS: Final = 624
MOST_WORDS: Final = _WORDS - 1
"""Words that come before the generator makes new ones."""

_STATE: Final = np.dtype(
    [("seed", "<u8"), ("left", "<i4"), ("seeded", "<i4"), ("next", "<u8"), ("words", "<u8", _WORDS)]
)


def generator_giving(words: UInt32[np.ndarray, " n"], seed: int) -> torch.Generator:
    """Return a generator that gives these words of 32 bits first, then others.

    Args:
        words: at most `MOST_WORDS`.
        seed: of the words that follow.

    Raises:
        ValueError: there are too many words, or this torch keeps its state in another way.

    """
    if not 0 < words.size <= MOST_WORDS:
        raise ValueError(f"words: {words.size} are refused: allowed are 1 to {MOST_WORDS}")
    generator = torch.Generator().manual_seed(seed)
    state = generator.get_state().numpy().copy()
    fields = state[: _STATE.itemsize].view(_STATE)
    fields["left"], fields["next"] = _WORDS, 0
    fields["words"][0, : words.size] = _untempered(words)
    generator.set_state(torch.from_numpy(state))
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    seen = torch.rand(words.size, generator=copy).double().numpy() * 2.0**24
    if not np.array_equal(seen, (words & np.uint32(2**24 - 1)).astype(np.float64)):
        raise ValueError(
            "torch keeps the state of its CPU generator in another way than known here"
        )
    return generator


def _untempered(words: UInt32[np.ndarray, " n"]) -> UInt32[np.ndarray, " n"]:
    """Invert what the twister does to a word of its state before it gives it."""
    y = words.copy()
    y ^= y >> np.uint32(18)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    kept = y.copy()
    for _ in range(5):
        kept = y ^ ((kept << np.uint32(7)) & np.uint32(0x9D2C5680))
    y = kept.copy()
    for _ in range(3):
        kept = y ^ (kept >> np.uint32(11))
    return kept
