"""Compacting: the same case over as small a vocabulary as its named ids need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from refsampler.conformance.case import Case
from refsampler.conformance.logits import RowRecipe
from refsampler.request import PLACEHOLDER, Request

__all__ = ["compacted"]


def compacted(case: Case) -> Case:
    """Return the case with the ids that anything names moved together, in their order.

    Of those that nobody names the lowest and the highest stay, so that backgrounds still have a place
    before and behind the others.
    """
    named = (
        {token for row in case.logits.rows for token in row.ids}
        | {token for one in case.requests for token in _tokens(one)}
        | {token for row in (() if case.drafts is None else case.drafts.rows) for token in row.ids}
    )
    unnamed = [token for token in range(case.logits.vocab) if token not in named]
    stay = sorted(named | {*unnamed[:1], *unnamed[-1:]})
    vocab = len(stay)
    if vocab == case.logits.vocab:
        return case
    place = {token: at for at, token in enumerate(stay)} | {PLACEHOLDER: PLACEHOLDER}

    def moved(row: RowRecipe) -> RowRecipe:
        return replace(row, ids=tuple(place[token] for token in row.ids))

    def rows(given: Iterable[RowRecipe]) -> tuple[RowRecipe, ...]:
        return tuple(moved(row) for row in given)

    logits = replace(case.logits, vocab=vocab, rows=rows(case.logits.rows))
    requests = tuple(_renamed(one, place.__getitem__, vocab) for one in case.requests)
    drafts = case.drafts
    if drafts is not None:
        drafts = replace(drafts, vocab=vocab, rows=rows(drafts.rows))
    return replace(case, logits=logits, requests=requests, drafts=drafts)


def _tokens(request: Request) -> set[int]:
    """Return every id that a request names."""
    asked = request.params
    eos = () if asked.eos_token_id is None else (asked.eos_token_id,)
    named = {*request.prompt, *request.output, *request.drafts, *asked.stop_token_ids, *eos}
    named |= {token for word in asked.bad_words_token_ids for token in word}
    named |= {*(asked.allowed_token_ids or ()), *(asked.logprob_token_ids or ())}
    return (named | {token for token, _ in asked.logit_bias}) - {PLACEHOLDER}


def _renamed(request: Request, new: Callable[[int], int], vocab: int) -> Request:
    asked = request.params

    def each(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(map(new, ids))

    params = replace(
        asked,
        stop_token_ids=each(asked.stop_token_ids),
        eos_token_id=None if asked.eos_token_id is None else new(asked.eos_token_id),
        bad_words_token_ids=tuple(each(word) for word in asked.bad_words_token_ids),
        allowed_token_ids=None
        if asked.allowed_token_ids is None
        else each(asked.allowed_token_ids),
        logit_bias=tuple((new(token), value) for token, value in asked.logit_bias),
        logprobs=None if asked.logprobs is None else min(asked.logprobs, vocab),
        logprob_token_ids=asked.logprob_token_ids and each(asked.logprob_token_ids),
    )
    histories = (each(request.prompt), each(request.output))
    return replace(
        request,
        params=params,
        prompt=histories[0],
        output=histories[1],
        drafts=each(request.drafts),
    )
