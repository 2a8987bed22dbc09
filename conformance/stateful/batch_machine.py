"""Machine of persistent batches: any operations in any order, each commit compared with a fresh build.

    TestBatch = batch_machine(lambda: MyBatch(6)).TestCase

It is for batches with the operations of `refsampler.batch.PersistentBatch` (clause `batch.state`).  What
is compared is every field of the metadata and what its processors do to logits, bit for bit; rows and
requests are compared after every operation.  Nothing is drawn, so a right batch never fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from refsampler.batch import PersistentBatch, Preempted
from refsampler.conformance.stateful.row_places import RowPlaces
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.processors import LogitsProcessor
from refsampler.request import Request
from refsampler.validation import ParameterError

__all__ = ["BatchMachine", "batch_machine"]

_LEAST_VOCAB = 6
_MOST = 6
_PROCESSED = ("logitsprocs", "thinking_budget_state_holder")


def batch_machine(
    make: Callable[[], PersistentBatch],
    *,
    custom: Sequence[type[LogitsProcessor]] = (),
    most: int = _MOST,
) -> type[BatchMachine]:
    """Return the state machine of a batch; its `TestCase` is a test.

    Args:
        make: returns an empty batch over 6 ids or more.
        custom: processors that it was made with, beside the built-in ones.
        most: requests in it at a time.

    Raises:
        ValueError: the vocabulary is smaller.

    """
    vocab = make().vocab_size
    if vocab < _LEAST_VOCAB:
        raise ValueError(f"vocab_size = {vocab} is refused: allowed is {_LEAST_VOCAB} or more")
    given = {"make": staticmethod(make), "custom": tuple(custom), "most": most}
    return type("Machine", (BatchMachine,), given)


def _params() -> st.SearchStrategy[SamplingParams]:
    """Each parameter set or not, so that batches differ in which tensors exist at all."""
    values: dict[str, list[Any]] = {
        "temperature": [0.0, 0.5],
        "top_p": [0.5],
        "top_k": [2, _LEAST_VOCAB],
        "min_p": [0.25, 0.5],
        "seed": [7, 8],
        "repetition_penalty": [2.0],
        "frequency_penalty": [0.5],
        "presence_penalty": [-1.0],
        "min_tokens": [2],
        "eos_token_id": [5],
        "stop_token_ids": [(0, 4)],
        "allowed_token_ids": [(1, 2), (5,)],
        "bad_words_token_ids": [((1, 2),), ((3,), (0, 0))],
        "logit_bias": [((2, -1.5),), ((0, 2.0), (5, -float("inf")))],
        "logprobs": [0, 2],
        "thinking_token_budget": [0, 2],
    }
    optional = {name: st.sampled_from(those) for name, those in values.items()}
    return st.fixed_dictionaries({}, optional=optional).map(lambda given: SamplingParams(**given))


_IDS = st.integers(0, _LEAST_VOCAB - 1)
_REQUEST = st.builds(
    Request,
    params=_params(),
    prompt=st.lists(_IDS, max_size=3).map(tuple),
    output=st.lists(_IDS, max_size=2).map(tuple),
    drafts=st.lists(_IDS, max_size=1).map(tuple),
)
_TOKENS = st.lists(_IDS, max_size=2).map(tuple)


def _seen(look: Callable[[BatchMachine], Sequence[int]]) -> st.SearchStrategy[int]:
    """Return a strategy that looks at the machine, so that a failure prints plain arguments."""
    return st.runner().flatmap(lambda self: st.sampled_from(look(self)))


_NAME = _seen(lambda self: self.places.names)
_AWAY = _seen(lambda self: sorted(self.away))
_FREE = _seen(lambda self: self.places.free)


class BatchMachine(RuleBasedStateMachine):
    """Any operations in any order; made by `batch_machine`.

    Attributes:
        batch: under test.
        places: the row of each request.
        requests: each request as it stands.
        away: what preempted ones left as, and their requests.

    """

    make: ClassVar[staticmethod[[], PersistentBatch]]
    custom: ClassVar[tuple[type[LogitsProcessor], ...]]
    most: ClassVar[int]
    batch: PersistentBatch
    places: RowPlaces
    requests: dict[int, Request]
    away: dict[int, tuple[Preempted, Request]]

    @initialize()
    def starts(self) -> None:
        """Make an empty batch."""
        self.batch, self.places = self.make(), RowPlaces()
        self.requests, self.away = {}, {}
        self._generators: dict[int, torch.Generator] = {}
        self._steps: dict[int, int] = {}

    @precondition(lambda self: len(self.requests) < self.most)
    @rule(request=_REQUEST)
    def add(self, request: Request) -> None:
        """Admit a request; without thinking markers nobody may have a budget."""
        if self.batch.thinking is None:
            request = replace(request, params=replace(request.params, thinking_token_budget=None))
        name = len(self._steps)
        assert self.batch.add(name, request) == self.places.add(name)
        self.requests[name], self._steps[name] = request, 0
        if request.params.seed is not None:
            self._generators[name] = torch.Generator().manual_seed(request.params.seed)

    @precondition(lambda self: self.requests)
    @rule(name=_NAME)
    def remove(self, name: int) -> None:
        """Take a request out."""
        self.batch.remove(name)
        self.places.remove(name)
        del self.requests[name]

    @precondition(lambda self: self.requests)
    @rule(name=_NAME)
    def preempt(self, name: int) -> None:
        """Take a request out, to be resumed later."""
        self.away[name] = self.batch.preempt(name), self.requests.pop(name)
        self.places.remove(name)

    @precondition(lambda self: self.away and len(self.requests) < self.most)
    @rule(name=_AWAY)
    def resume(self, name: int) -> None:
        """Admit a preempted request as it left."""
        preempted, self.requests[name] = self.away.pop(name)
        assert self.batch.resume(preempted) == self.places.add(name)

    @precondition(lambda self: self.places.free)
    @rule()
    def condense(self) -> None:
        """Fill the free rows from the end."""
        self.batch.condense()
        self.places.condense()

    @precondition(lambda self: self.requests and self.places.free)
    @rule(name=_NAME, row=_FREE)
    def move(self, name: int, row: int) -> None:
        """Move a request to a free row."""
        self.batch.move(self.places.row(name), row)
        self.places.move(name, row)

    @precondition(lambda self: self.requests)
    @rule(one=_NAME, other=_NAME)
    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        self.batch.swap(self.places.row(one), self.places.row(other))
        self.places.swap(one, other)

    @precondition(lambda self: self.requests)
    @rule(name=_NAME, tokens=_TOKENS)
    def accept(self, name: int, tokens: tuple[int, ...]) -> None:
        """Append what a step produced; the drafts are used up."""
        self.batch.accept(name, tokens)
        old = self.requests[name]
        self.requests[name] = replace(old, output=(*old.output, *tokens), drafts=())
        self._steps[name] += len(tokens)

    @precondition(lambda self: self.requests)
    @rule(name=_NAME, drafts=_TOKENS)
    def set_drafts(self, name: int, drafts: tuple[int, ...]) -> None:
        """Schedule drafts."""
        self.batch.set_drafts(name, drafts)
        self.requests[name] = replace(self.requests[name], drafts=drafts)

    @rule(in_prompt=st.booleans())
    def refuse(self, in_prompt: bool) -> None:
        """Hand over a request out of range, which changes nothing."""
        beyond = (self.batch.vocab_size,)
        bad = (
            Request(prompt=beyond) if in_prompt else Request(SamplingParams(stop_token_ids=beyond))
        )
        try:
            self.batch.add(len(self._steps), bad)
        except ParameterError:
            return
        raise AssertionError(f"a request with id {beyond[0]} of {beyond[0]} was admitted")

    @rule()
    def commit(self) -> None:
        """Settle the rows, and compare with a fresh build; then every seeded row draws."""
        metadata = self.batch.commit()
        self.places.condense()
        names = self.places.names
        generators = {
            row: self._generators[name]
            for row, name in enumerate(names)
            if name in self._generators
        }
        fresh = SamplingMetadata.from_requests(
            [self.requests[name] for name in names],
            self.batch.vocab_size,
            custom=self.custom,
            thinking=self.batch.thinking,
            generators=generators,
            steps=[self._steps[name] for name in names],
        )
        _same(metadata, fresh, len(names))
        for row, generator in generators.items():
            torch.rand(1, generator=generator)
            torch.rand(1, generator=metadata.generators[row])

    @invariant()
    def rows_hold_the_requests(self) -> None:
        """Each request is in its row, as it stands."""
        assert self.batch.rows == self.places.rows
        assert self.batch.requests == tuple(self.requests[name] for name in self.places.names)


def _same(metadata: SamplingMetadata, fresh: SamplingMetadata, rows: int) -> None:
    """Compare every field, and of processors what they do."""
    for name in (one.name for one in fields(SamplingMetadata)):
        if name not in _PROCESSED:
            _equal(name, getattr(metadata, name), getattr(fresh, name))
    _equal("logitsprocs.min_p", metadata.logitsprocs.min_p, fresh.logitsprocs.min_p)
    _equal("logitsprocs", *(_effects(one, rows) for one in (metadata, fresh)))
    _equal("thinking_budget_state_holder", *(_forced(one, rows) for one in (metadata, fresh)))


def _equal(name: str, ours: object, theirs: object) -> None:
    seen, expected = _plain(ours), _plain(theirs)
    assert seen == expected, f"{name}: {seen}; a fresh build has {expected}"


def _plain(value: object) -> object:
    """Return a field as something that == compares."""
    if isinstance(value, Tensor):
        return (value.dtype, value.tolist())
    if isinstance(value, dict):
        return {row: _plain(one) for row, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    return value


def _logits(metadata: SamplingMetadata, rows: int) -> Tensor:
    count = rows * metadata.vocab_size
    return (
        torch.arange(count, dtype=torch.float32).reshape(rows, metadata.vocab_size).remainder(5) / 4
    )


def _effects(metadata: SamplingMetadata, rows: int) -> list[Tensor]:
    """Return what each processor makes of fixed logits, one after the other."""
    processors = metadata.logitsprocs
    seen = [_logits(metadata, rows)]
    for one in (*processors.non_argmax_invariant, *processors.argmax_invariant):
        seen.append(one.apply(seen[-1]))
    return seen


def _forced(metadata: SamplingMetadata, rows: int) -> list[Tensor]:
    """Return what the thinking budget makes of fixed logits."""
    holder, logits = metadata.thinking_budget_state_holder, _logits(metadata, rows)
    if holder is None:
        return []
    return [holder.apply(logits, predict_bonus_token=bonus) for bonus in (False, True)]
