"""A right session with the hooks that faults of an engine override."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from refsampler.backends.reference import ReferenceSession
from refsampler.batch import PersistentBatch
from refsampler.metadata import SamplingMetadata
from refsampler.sampler import Sampler, SamplerOutput

__all__ = ["RightSession"]

_MOST_REQUESTS = 2**16


class RightSession(ReferenceSession):
    """The reference session; `batch` is what a wrong one replaces, `changed` what it samples with."""

    batch: type[PersistentBatch] = PersistentBatch

    def __init__(self, vocab: int, seed: int) -> None:
        super().__init__(vocab, seed)
        self._batch = self.batch(vocab, max_num_reqs=_MOST_REQUESTS)
        self._sampler = _Changed(self.changed)

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        """Return the metadata that is sampled with."""
        return metadata


class _Changed(Sampler):
    """The reference sampler behind a change of the metadata."""

    def __init__(self, changed: Callable[[SamplingMetadata], SamplingMetadata]) -> None:
        super().__init__()
        self._changed = changed

    def __call__(
        self,
        logits: Float[Tensor, "num_tokens vocab"],
        metadata: SamplingMetadata,
        *,
        predict_bonus_token: bool = False,
        logprobs_mode: str | None = None,
    ) -> SamplerOutput:
        return super().__call__(
            logits,
            self._changed(metadata),
            predict_bonus_token=predict_bonus_token,
            logprobs_mode=logprobs_mode,
        )
