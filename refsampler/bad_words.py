"""Bad words: id sequences that must not be completed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float32
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
    # ids outside the vocabulary are no ids
    cells = [
        row * vocab_size + token
        for row, words in bad_words.items()
        if 0 <= row < num_tokens
        for token in banned_last_ids(words, outputs[row])
        if 0 <= token < vocab_size
    ]
    banned = torch.tensor(cells, dtype=torch.int64, device=logits.device)
    return logits.flatten().index_fill(0, banned, -torch.inf).reshape(num_tokens, vocab_size)


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
