"""The law's own masks, bias and penalties.

Each step takes a batch of rows and returns the next one.  Nothing here comes from the sampler: the
law states the clauses a second time, so that a comparison of the two means something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from refsampler.law_row import Row, power_of_two, representable
from refsampler.request import PLACEHOLDER, Request, ThinkingMarkers
from refsampler.semantics import Scope, Semantics, Step
from refsampler.thinking import forced_id

__all__ = ["Seen", "apply_step", "forced_ids"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A batch of requests as the steps see them.

    Attributes:
        requests: one a row.
        semantics: scopes and window of the penalties.
        thinking: markers of the model's thinking section.
        with_drafts: whether the drafts are history (clause `spec.history`).

    """

    requests: Sequence[Request]
    semantics: Semantics
    thinking: ThinkingMarkers | None
    with_drafts: bool

    def outputs(self) -> list[tuple[int, ...]]:
        """Return each row's output ids, placeholders in place."""
        return [
            (*one.output, *one.drafts) if self.with_drafts else one.output for one in self.requests
        ]

    def history(self, scope: Scope) -> list[list[int]]:
        """Return the ids that a penalty counts (clause `penalty.history`), within the window."""
        histories = []
        for request, output in zip(self.requests, self.outputs(), strict=True):
            prompt = request.prompt if scope is Scope.PROMPT_OUTPUT else ()
            known = [token for token in (*prompt, *output) if token != PLACEHOLDER]
            window = len(known) if self.semantics.window is None else self.semantics.window
            histories.append(known[max(0, len(known) - window) :])
        return histories


def apply_step(step: Step, row: Row, seen: Seen) -> Row:
    """Return the rows after a mask, the bias or a penalty."""
    return _ACTIONS[step](row, seen)


def _allowed(row: Row, seen: Seen) -> Row:
    """Ban every id outside a request's allow-list (clause `mask.allowed`)."""
    lists = [one.params.allowed_token_ids for one in seen.requests]
    if all(one is None for one in lists):
        return row
    listed = _mask([() if one is None else one for one in lists], row.x)
    limited = torch.tensor([one is not None for one in lists], device=row.x.device)
    return row.masked(limited[:, None] & ~listed)


def _bad_words(row: Row, seen: Seen) -> Row:
    """Ban the last id of every word whose other ids were just put out (clause `mask.bad-words`)."""
    banned = []
    for request, output in zip(seen.requests, seen.outputs(), strict=True):
        words = request.params.bad_words_token_ids
        banned.append([word[-1] for word in words if _just_put_out(word[:-1], output)])
    return _banned(row, banned)


def _just_put_out(ids: Sequence[int], output: Sequence[int]) -> bool:
    """Say whether the output ends in these ids; a placeholder equals none."""
    return len(output) >= len(ids) and tuple(output[len(output) - len(ids) :]) == tuple(ids)


def _banned(row: Row, ids: Sequence[Sequence[int]]) -> Row:
    """Ban each row's ids."""
    return row.masked(_mask(ids, row.x)) if any(ids) else row


def _min_tokens(row: Row, seen: Seen) -> Row:
    """Ban stop and eos ids while fewer than min_tokens ids were put out (`mask.min-tokens`)."""
    early = [
        sorted(one.params.all_stop_token_ids) if len(output) < one.params.min_tokens else []
        for one, output in zip(seen.requests, seen.outputs(), strict=True)
    ]
    return _banned(row, early)


def _biased(row: Row, seen: Seen) -> Row:
    """Add the bias of each listed id; -inf bans it (clause `bias.additive`)."""
    biases = [one.params.logit_bias for one in seen.requests]
    if not any(biases):
        return row
    bias = _dense(biases, row.x)
    banned = row.masked(bias == -torch.inf)
    where = torch.isfinite(bias) & (bias != 0)
    return banned.changed(where, row.x + bias, bias, representable(row.x + bias))


def _repetition(row: Row, seen: Seen) -> Row:
    """x/r if x > 0, else x*r, once for each id of the history (clause `penalty.repetition`)."""
    r = _parameter(seen, "repetition_penalty", row.x)
    if bool((r == 1).all()):
        return row
    counts = _counts(seen.history(seen.semantics.repetition_scope), row.x)
    value = torch.where(row.x > 0, row.x / r, row.x * r)
    exact = (row.x == 0) | power_of_two(r)
    return row.changed((counts > 0) & (r != 1), value, torch.zeros_like(value), exact)


def _frequency(row: Row, seen: Seen) -> Row:
    """Subtract f for each time that an id occurs (clause `penalty.frequency`)."""
    penalty = _parameter(seen, "frequency_penalty", row.x)
    if not bool(penalty.any()):
        return row
    return _reduced(row, penalty * _counts(seen.history(seen.semantics.count_scope), row.x))


def _presence(row: Row, seen: Seen) -> Row:
    """Subtract s from each id that occurs (clause `penalty.presence`)."""
    penalty = _parameter(seen, "presence_penalty", row.x)
    if not bool(penalty.any()):
        return row
    return _reduced(row, penalty * (_counts(seen.history(seen.semantics.count_scope), row.x) > 0))


def _reduced(row: Row, term: Float64[Tensor, "rows vocab"]) -> Row:
    """Subtract a term; a backend computes it in float32 before."""
    exact = representable(term) & representable(row.x - term)
    return row.changed(term != 0, row.x - term, term, exact)


def forced_ids(seen: Seen, like: Float64[Tensor, "rows vocab"]) -> Int64[Tensor, " rows"]:
    """Return the id that ends each row's thinking now, -1 where the model is free."""
    ids = []
    for request in seen.requests:
        budget = request.params.thinking_token_budget
        drafts = request.drafts if seen.with_drafts else ()
        forced = (
            None
            if seen.thinking is None or budget is None
            else forced_id(request.prompt, request.output, drafts, budget, seen.thinking)
        )
        ids.append(-1 if forced is None else forced)
    return torch.tensor(ids, dtype=torch.int64, device=like.device)


def _parameter(
    seen: Seen, name: str, like: Float64[Tensor, "rows vocab"]
) -> Float64[Tensor, "rows 1"]:
    """Return a parameter of every row as the float32 that reaches a backend."""
    values = [getattr(one.params, name) for one in seen.requests]
    return torch.tensor(values, dtype=torch.float32, device=like.device).double()[:, None]


def _counts(
    histories: Sequence[Sequence[int]], like: Float64[Tensor, "rows vocab"]
) -> Float64[Tensor, "rows vocab"]:
    """Count the ids of each row's history."""
    rows, vocab = like.shape
    cells = [row * vocab + token for row, ids in enumerate(histories) for token in ids]
    counted = torch.tensor(cells, dtype=torch.int64).bincount(minlength=rows * vocab)
    return counted.reshape(rows, vocab).double().to(like.device)


def _mask(
    ids: Sequence[Iterable[int]], like: Float64[Tensor, "rows vocab"]
) -> Bool[Tensor, "rows vocab"]:
    """Return a mask that is True at each row's ids."""
    return _counts([list(one) for one in ids], like) > 0


def _dense(
    pairs: Sequence[Sequence[tuple[int, float]]], like: Float64[Tensor, "rows vocab"]
) -> Float64[Tensor, "rows vocab"]:
    """Return each row's float32 values at their ids and 0 elsewhere."""
    rows, vocab = like.shape
    cells = [row * vocab + token for row, own in enumerate(pairs) for token, _ in own]
    values = [value for own in pairs for _, value in own]
    where = torch.tensor(cells, dtype=torch.int64, device=like.device)
    what = torch.tensor(values, dtype=torch.float32, device=like.device).double()
    return torch.zeros_like(like).flatten().scatter(0, where, what).reshape(rows, vocab)


_ACTIONS: Mapping[Step, Callable[[Row, Seen], Row]] = {
    Step.ALLOWED: _allowed,
    Step.BAD_WORDS: _bad_words,
    Step.MIN_TOKENS: _min_tokens,
    Step.LOGIT_BIAS: _biased,
    Step.REPETITION: _repetition,
    Step.FREQUENCY: _frequency,
    Step.PRESENCE: _presence,
}
