"""Bad words: id sequences that must not be completed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

__all__ = ["banned_last_ids", "encode_bad_words", "mask_bad_words"]


def mask_bad_words(
    logits: Float32[Tensor, "num_tokens vocab"],
    bad_words: Mapping[int, Sequence[Sequence[int]]],
    outputs: Sequence[Sequence[int]],
) -> Float32[Tensor, "num_tokens vocab"]:
    """Set the last id of every word that would be completed now to -inf.

    Args:
        logits: one row a request.
        bad_words: row -> its words, each of at least one id.
        outputs: each row's output ids; the prompt does not count.

    """
    num_tokens, vocab_size = logits.shape
    banned = [
        banned_last_ids(bad_words[row], outputs[row]) if row in bad_words else frozenset()
        for row in range(num_tokens)
    ]
    mask = torch.stack([_mask_of(ids, vocab_size, logits.device) for ids in banned])
    return torch.where(mask, -torch.inf, logits)


def banned_last_ids(words: Sequence[Sequence[int]], output: Sequence[int]) -> frozenset[int]:
    """Return the ids that would complete a word (clause `mask.bad-words`).

    A one-id word is always banned; a longer one bans its last id iff the last ids of the output
    equal the ids before it.
    """
    past = tuple(output)
    banned = set()
    for word in words:
        *prefix, last = word
        length = len(prefix)
        if length <= len(past) and tuple(prefix) == past[len(past) - length :]:
            banned.add(last)
    return frozenset(banned)


def encode_bad_words(
    words: Sequence[str], encode: Callable[[str], Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Turn banned strings into banned id sequences, as vLLM 0.25.1's parameters do.

    Each word is encoded without leading blanks and with one; the second form counts only if it has
    as many ids and another first id.

    Args:
        words: strings that are not empty.
        encode: a tokenizer's encoding without special tokens.

    """
    encoded: list[tuple[int, ...]] = []
    for word in words:
        bare, spaced = (tuple(encode(space + word.lstrip())) for space in ("", " "))
        encoded.append(bare)
        if len(spaced) == len(bare) and spaced[:1] != bare[:1]:
            encoded.append(spaced)
    return tuple(encoded)


def _mask_of(ids: frozenset[int], vocab_size: int, device: torch.device) -> Bool[Tensor, " vocab"]:
    """Return a row that is True at `ids`; ids outside the vocabulary are no ids."""
    inside = [token for token in sorted(ids) if 0 <= token < vocab_size]
    banned = torch.tensor(inside, dtype=torch.int64, device=device)
    return torch.isin(torch.arange(vocab_size, device=device), banned)
