"""What kernels that verify drafts share: the reference pipeline around them samples and drafts."""

from __future__ import annotations

from typing import Final

from jaxtyping import Float
from torch import Tensor

from refsampler.backends.protocol import Feature
from refsampler.drafts import Proposed, propose
from refsampler.metadata import SamplingMetadata
from refsampler.sampler import Sampler, SamplerOutput

__all__ = ["PIPELINE", "DraftingSampler"]

PIPELINE: Final = frozenset(
    {
        Feature.PENALTIES,
        Feature.MASKS,
        Feature.LOGPROBS,
        Feature.THINKING,
        Feature.SPECULATIVE,
        Feature.DRAFT,
    }
)
"""Features that come with the pipeline and a verifier, whatever the kernel."""


class DraftingSampler:
    """A sampler of level 2 around a kernel; `verify` is left to the backend.

    Args:
        sampler: the reference pipeline with the kernel in it.

    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def sample(
        self,
        logits: Float[Tensor, "num_tokens vocab"],
        metadata: SamplingMetadata,
        *,
        logprobs_mode: str | None = None,
    ) -> SamplerOutput:
        """Sample one id a row; the logits stay as they are."""
        return self._sampler(logits, metadata, logprobs_mode=logprobs_mode)

    def draft(
        self, logits: Float[Tensor, "requests vocab"], metadata: SamplingMetadata
    ) -> Proposed:
        """Draw one draft of each request, and tell the law that it came from."""
        return propose(self._sampler, logits, metadata)
