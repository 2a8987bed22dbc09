"""vLLM's V1 rejection sampler as a backend of the suite, in the environment of setup_env.py.

    .venv-vllm/bin/python -m refsampler check tests.vllm_parity.backend:backend --clause 'spec.*'

The metadata are handed over field by field, since the reference's have vLLM's names; min tokens are
not, and so not declared.  What vLLM's engine refuses at admission, and a batch without any draft, which
it gives to its Sampler, are decided here.
"""

from __future__ import annotations

from dataclasses import fields

from tests.vllm_parity.interpreter import install

install()  # before vLLM

from torch import Tensor  # noqa: E402
from vllm.v1.sample.logits_processor import LogitsProcessors  # noqa: E402
from vllm.v1.sample.metadata import SamplingMetadata as RealMetadata  # noqa: E402
from vllm.v1.sample.rejection_sampler import RejectionSampler  # noqa: E402
from vllm.v1.sample.sampler import Sampler  # noqa: E402

from refsampler.backends.protocol import Capabilities, Feature, Verified  # noqa: E402
from refsampler.drafts import check_drafts  # noqa: E402
from refsampler.metadata import SamplingMetadata  # noqa: E402
from refsampler.positions import drafts_of  # noqa: E402
from refsampler.sampler import SamplerOutput  # noqa: E402
from tests.vllm_parity.rejection import scheduled  # noqa: E402

__all__ = ["VllmVerifier", "backend"]


class VllmVerifier:
    """Level 2: `RejectionSampler` and `Sampler`, their races in float64 so that seeds count on a CPU."""

    capabilities = Capabilities(
        name="vllm-rejection-sampler",
        version="0.25.1",
        level=2,
        features=frozenset({Feature.SPECULATIVE, Feature.SEED, Feature.PENALTIES}),
    )

    def __init__(self) -> None:
        self._sampler = Sampler(use_fp64_gumbel=True)
        self._verifier = RejectionSampler(self._sampler)

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Sample one id a row."""
        output = self._sampler(logits.clone(), _real(metadata))
        return SamplerOutput(output.sampled_token_ids, None, output.sampled_token_ids[:, 0] >= 0)

    def verify(
        self,
        draft_ids: Tensor,
        draft_probs: Tensor | None,
        logits: Tensor,
        metadata: SamplingMetadata,
    ) -> Verified:
        """Verify the drafts of a batch.

        Raises:
            ValueError: what vLLM refuses when a request is admitted.

        """
        drafts = [list(ids) for ids in drafts_of(metadata)]
        check_drafts(draft_ids, draft_probs, logits, metadata, drafts)
        if not any(drafts):
            ids = self._sampler(logits.clone(), _real(metadata)).sampled_token_ids
        else:
            given = scheduled(drafts), draft_probs, logits.clone(), _real(metadata)
            ids = self._verifier(*given).sampled_token_ids
        return Verified(ids, None, ids[:, 0] >= 0)


def _real(metadata: SamplingMetadata) -> RealMetadata:
    """Return the metadata as vLLM's own type."""
    names = {one.name for one in fields(RealMetadata)} - {"logitsprocs"}
    same = {name: getattr(metadata, name) for name in names}
    return RealMetadata(**same, logitsprocs=LogitsProcessors())


backend = VllmVerifier()
