"""Sessions for engines that keep state by request: what every such adapter needs, and nothing else.

The engine's own code samples; here stands only who is running and what was said so far.  Such an
adapter declares `credit` 2: admission and batches of requests are not the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from refsampler.request import PLACEHOLDER, Request
from refsampler.sampler import SamplerOutput

__all__ = ["Row", "RowSampler", "RowSession", "refuse"]

_State = TypeVar("_State")


@dataclass(slots=True)
class Row(Generic[_State]):
    """A running request: as it was added, what it has generated since, and the engine's state."""

    request: Request
    state: _State
    output: list[int] = field(default_factory=list)

    @property
    def history(self) -> list[int]:
        """Prompt and output, less ids that are not known yet."""
        return [*self.request.prompt, *self.known]

    @property
    def known(self) -> list[int]:
        """The output, less ids that are not known yet."""
        return [token for token in self.output if token != PLACEHOLDER]


class RowSampler(Protocol[_State]):
    """What an adapter does with rows."""

    def admit(self, request: Request, vocab: int, seed: int) -> _State:
        """Return the state of a request, or refuse it by name; `seed` is fresh for each."""

    def heard(self, state: _State, tokens: Sequence[int]) -> None:
        """Let the engine know of tokens of the prompt or the output."""

    def sample(self, rows: Sequence[Row[_State]], logits: Tensor) -> Sequence[int]:
        """Return one id a row; logits [rows, V] are the callee's to change."""

    def forget(self, state: _State) -> None:
        """Give back what a state holds."""


class RowSession(Generic[_State]):
    """A running batch over a `RowSampler`."""

    def __init__(self, sampler: RowSampler[_State], vocab: int, seed: int) -> None:
        self._sampler, self._vocab = sampler, vocab
        self._rows: dict[int, Row[_State]] = {}
        self._seeds = torch.Generator().manual_seed(seed)

    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        """Admit a request, or refuse it by name."""
        if id in self._rows:
            raise ValueError(f"id = {id} is refused: allowed is an id that is not running")
        request.verify(self._vocab)
        fresh = int(torch.randint(2**31, (), generator=self._seeds))
        row = Row(request, self._sampler.admit(request, self._vocab, fresh))
        row.output.extend(request.output)
        self._sampler.heard(row.state, row.history)
        self._rows[id] = row

    def remove(self, id: int) -> None:  # noqa: A002 - the protocol's name
        """Forget a request."""
        self._sampler.forget(self._rows.pop(id).state)

    def sample(self, ids: Sequence[int], logits: Tensor) -> SamplerOutput:
        """Sample one id for each of `ids`."""
        rows = [self._rows[one] for one in ids]
        drawn = self._sampler.sample(rows, logits.clone()) if rows else []
        sampled = torch.tensor(drawn, dtype=torch.int32).reshape(-1, 1)
        return SamplerOutput(sampled, None, torch.ones(len(rows), dtype=torch.bool))

    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Append tokens to the requests' outputs."""
        for one, accepted in zip(ids, tokens, strict=True):
            row = self._rows[one]
            row.output.extend(accepted)
            self._sampler.heard(row.state, [token for token in accepted if token != PLACEHOLDER])

    def close(self) -> None:
        """Forget everything."""
        for one in tuple(self._rows):
            self.remove(one)


_OFF: Final[Mapping[str, object]] = {
    "seed": None,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "min_tokens": 0,
    "bad_words_token_ids": (),
    "allowed_token_ids": None,
    "logit_bias": (),
    "logprobs": None,
    "logprob_token_ids": None,
    "thinking_token_budget": None,
}


def refuse(request: Request, engine: str, *, but: Sequence[str] = ()) -> None:
    """Refuse what an engine does not offer on given logits.

    Args:
        request: that wants to enter.
        engine: its name.
        but: fields that it does offer.

    Raises:
        ValueError: names the field, its value and what is allowed.

    """
    for name, off in _OFF.items():
        asked = getattr(request.params, name)
        if asked != off and name not in but:
            raise ValueError(f"{name} = {asked!r} is refused: {engine} allows {off!r}")
