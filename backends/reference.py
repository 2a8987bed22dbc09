"""The reference as a subject: a batch sampler and an engine made of `refsampler/` alone.

They are the positive controls of the suite: what a check says of them, it says of the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from refsampler import __version__
from refsampler.backends.protocol import Capabilities, DType, Feature
from refsampler.batch import PersistentBatch, Preempted
from refsampler.drafts import Proposed, propose
from refsampler.metadata import SamplingMetadata
from refsampler.positions import at_positions, bonus_positions
from refsampler.request import Request
from refsampler.sampler import Sampler, SamplerOutput
from refsampler.speculative import RejectionSampler, Verified

__all__ = ["ReferenceEngine", "ReferenceSampler", "ReferenceSession", "engine", "sampler"]

_MOST_REQUESTS = 2**16
_FEATURES = frozenset(
    {Feature.SEED, Feature.PENALTIES, Feature.MASKS, Feature.LOGPROBS, Feature.THINKING}
)


class ReferenceSampler:
    """Level 2: the nine steps, metadata in and output out."""

    def __init__(self, logprobs_mode: str = "raw_logprobs") -> None:
        self._sampler = Sampler(logprobs_mode)
        self.capabilities = Capabilities(
            name="reference",
            version=__version__,
            level=2,
            dtypes=frozenset(DType),
            features=_FEATURES | {Feature.SPECULATIVE, Feature.DRAFT},
        )

    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, logprobs_mode: str | None = None
    ) -> SamplerOutput:
        """Sample one id a row; the logits stay as they are.

        Args:
            logits: [num_tokens, vocab].
            metadata: the batch.
            logprobs_mode: overrides the constructor's.

        """
        return self._sampler(logits, metadata, logprobs_mode=logprobs_mode)

    def draft(self, logits: Tensor, metadata: SamplingMetadata) -> Proposed:
        """Draw one draft of each request, and tell the law that it came from."""
        return propose(self._sampler, logits, metadata)

    def verify(
        self,
        draft_ids: Tensor,
        draft_probs: Tensor | None,
        logits: Tensor,
        metadata: SamplingMetadata,
    ) -> Verified:
        """Verify the drafts of a batch (see `RejectionSampler`)."""
        return RejectionSampler(self._sampler)(draft_ids, draft_probs, logits, metadata)


class ReferenceEngine:
    """Level 3: sessions over a persistent batch; a session has no thinking markers."""

    def __init__(self) -> None:
        self.capabilities = Capabilities(
            name="reference-engine",
            version=__version__,
            level=3,
            dtypes=frozenset(DType),
            features=(_FEATURES - {Feature.THINKING}) | {Feature.SPECULATIVE, Feature.DRAFT},
        )

    def open(self, vocab: int, seed: int) -> ReferenceSession:
        """Start a session over V = `vocab` ids; `seed` feeds unseeded requests."""
        return ReferenceSession(vocab, seed)


class ReferenceSession:
    """A running batch; requests that a step does not name wait outside it.

    Args:
        vocab: V.
        seed: of the noise of requests that have none of their own.
        sample: what samples a batch in place of the reference; it does not verify drafts.

    """

    def __init__(
        self,
        vocab: int,
        seed: int,
        sample: Callable[[Tensor, SamplingMetadata], SamplerOutput] | None = None,
    ) -> None:
        self._batch = PersistentBatch(vocab, max_num_reqs=_MOST_REQUESTS)
        self._waiting: dict[int, Preempted] = {}
        self._sampler = Sampler()
        self._sample = sample
        self._noise = torch.Generator().manual_seed(seed).get_state()

    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        """Admit a request, or refuse it with an error that names field, value and range."""
        if id in self._waiting:
            raise ValueError(f"id = {id} is refused: allowed is an id that is not running")
        # validates again: parameters off a wire need not have been made by their constructor
        self._batch.add(id, replace(request, params=replace(request.params)))

    def remove(self, id: int) -> None:  # noqa: A002 - the protocol's name
        """Forget a request."""
        if self._waiting.pop(id, None) is None:
            self._batch.remove(id)

    def sample(self, ids: Sequence[int], logits: Tensor) -> SamplerOutput:
        """Sample one id for each of `ids`, whose order is the row order."""
        self._schedule(ids)
        metadata = self._batch.commit()
        with self._own_noise():
            return (self._sample or self._sampler)(logits, metadata)

    def draft(
        self, ids: Sequence[int], drafts: Sequence[Sequence[int]], logits: Tensor
    ) -> Proposed:
        """Propose one id more for each of `ids`, behind the drafts that it has already."""
        self._schedule(ids)
        metadata = replace(self._batch.commit(), spec_token_ids=drafts)
        behind = at_positions(metadata, bonus_positions(drafts))
        with self._own_noise():
            return propose(self._sampler, logits, behind)

    def verify(
        self,
        ids: Sequence[int],
        drafts: Sequence[Sequence[int]],
        draft_probs: Tensor | None,
        logits: Tensor,
    ) -> Verified:
        """Verify drafts; a request that speculation cannot honour is refused with ValueError."""
        self._schedule(ids)
        running = self._batch.commit()
        metadata = SamplingMetadata.from_requests(
            [
                replace(one, drafts=tuple(proposed))
                for one, proposed in zip(self._batch.requests, drafts, strict=True)
            ],
            running.vocab_size,
            generators=running.generators,
            steps=running.steps,
            speculative=True,
        )
        flat = torch.tensor([token for one in drafts for token in one], dtype=torch.int64)
        with self._own_noise():
            return RejectionSampler(self._sampler)(flat, draft_probs, logits, metadata)

    @contextmanager
    def _own_noise(self) -> Iterator[None]:
        """Let unseeded requests draw from the session's stream."""
        before = torch.random.get_rng_state()
        torch.random.set_rng_state(self._noise)
        try:
            yield
        finally:
            self._noise = torch.random.get_rng_state()
            torch.random.set_rng_state(before)

    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Append tokens to the requests' outputs."""
        for request_id, accepted in zip(ids, tokens, strict=True):
            if request_id in self._waiting:
                self._batch.resume(self._waiting.pop(request_id))
            self._batch.accept(request_id, accepted)

    def close(self) -> None:
        """Forget everything."""
        self._waiting = {}
        for request_id in self._batch.rows:
            if request_id is not None:
                self._batch.remove(request_id)

    def _schedule(self, ids: Sequence[int]) -> None:
        """Bring exactly `ids` into the batch, in their order."""
        for running in self._batch.rows:
            if running is not None and running not in ids:
                self._waiting[running] = self._batch.preempt(running)
        for request_id in ids:
            if request_id in self._waiting:
                self._batch.resume(self._waiting.pop(request_id))
        self._batch.condense()
        if self._batch.rows == tuple(ids):
            return
        for row, request_id in enumerate(ids):
            self._batch.swap(row, self._batch.rows.index(request_id))


sampler = ReferenceSampler()
engine = ReferenceEngine()
