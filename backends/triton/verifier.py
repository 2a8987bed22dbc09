"""The Triton kernels as a level-2 backend that verifies drafts too."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from refsampler.backends.drafting import PIPELINE, DraftingSampler
from refsampler.backends.emitted import all_of, emitted_ids
from refsampler.backends.protocol import Capabilities, Feature
from refsampler.backends.triton.geometry import Geometry
from refsampler.backends.triton.kernel import TritonKernel
from refsampler.backends.triton.verify import Drafts, Layout
from refsampler.drafts import check_drafts
from refsampler.draw import Fold
from refsampler.folding import kernel_rows
from refsampler.logprobs import gather, has_law, shown_values
from refsampler.metadata import SamplingMetadata
from refsampler.positions import all_positions, at_positions, drafts_of
from refsampler.sampler import Sampler, as_float32, temperatures
from refsampler.speculative import Verified

__all__ = ["TritonVerifier"]


class TritonVerifier(DraftingSampler):
    """Level 2: the Triton kernel in the reference pipeline, and a verifier of drafts.

    Law: that of `TritonKernel` at every position.  A draft is accepted where u q < p, with a float64
    u and p from float32 exponentials over an integer sum; what replaces it is drawn from the
    positive part of p - q in units of 2^-44, from p where all of that is 0.  What a seeded request
    emits is a function of its logits, laws, drafts, parameters, seed and step; its noise is apart
    from that of the drafts and of the bonus, which share the kernel's streams at other steps.

    Args:
        device: where the logits live; None is the GPU, or the CPU under `TRITON_INTERPRET=1`.
        geometry: sizes of blocks; None is what was tuned for the device.

    Raises:
        ModuleNotFoundError: triton is not installed (extra `triton`).
        RuntimeError: there is no GPU, and the interpreter is not asked for.

    """

    def __init__(self, device: str | None = None, geometry: Geometry | None = None) -> None:
        self._kernel = kernel = TritonKernel(device, geometry)
        super().__init__(Sampler(filter_and_draw=kernel.draw, folds=kernel.capabilities.folds))
        declared = kernel.capabilities
        self.capabilities = Capabilities(
            name="triton-verifier",
            version=declared.version,
            level=2,
            device=declared.device,
            semantics=declared.semantics,
            floor=declared.floor,
            dtypes=declared.dtypes,
            features=(declared.features & {Feature.SEED, Feature.BITWISE}) | PIPELINE,
        )

    def verify(
        self,
        draft_ids: Int[Tensor, " drafts"],
        draft_probs: Float[Tensor, "laws width"] | None,
        logits: Float[Tensor, "positions vocab"],
        metadata: SamplingMetadata,
    ) -> Verified:
        """Verify the drafts of a batch (see `RejectionSampler`).

        Raises:
            TypeError: the logits have another dtype.
            ValueError: what does not fit together, or the batch has processors that drafts do not
                admit.

        """
        drafts = drafts_of(metadata)
        check_drafts(draft_ids, draft_probs, logits, metadata, drafts)
        sizes = [len(ids) for ids in drafts]
        layout = Layout.of(sizes, logits.device)
        last = (layout.sizes + 1).cumsum(0) - 1
        bonus = self._sampler(
            logits[last],
            replace(metadata, max_num_logprobs=None, logprob_token_ids=None),
            predict_bonus_token=True,
        ).sampled_token_ids
        positions = at_positions(metadata, all_positions(drafts))
        raw = as_float32(logits)
        x = self._sampler.process(raw, positions)
        tokens = bonus
        if layout.most:
            tokens = self._verified(x, draft_ids, draft_probs, bonus[:, 0], layout, metadata)
        emitted = emitted_ids(tokens, sizes)
        shown = shown_values(self._sampler.logprobs_mode, raw, x)
        return Verified(
            token_ids=tokens,
            logprobs_tensors=gather(
                shown,
                emitted.clamp(min=0),
                positions.max_num_logprobs,
                positions.logprob_token_ids or {},
            ),
            valid=all_of(has_law(x) | (emitted < 0), sizes),
        )

    def _verified(
        self,
        x: Float32[Tensor, "positions vocab"],
        draft_ids: Int[Tensor, " drafts"],
        draft_probs: Float[Tensor, "laws width"] | None,
        bonus: Tensor,
        layout: Layout,
        metadata: SamplingMetadata,
    ) -> Tensor:
        """Hand a batch with drafts to the kernels."""
        rows = kernel_rows(metadata, temperatures(metadata, x[: len(bonus)]), frozenset(Fold))
        assert rows.temperature is not None
        noise = torch.zeros_like(rows.seed)
        if len(rows.generators) != len(bonus):
            noise.random_()
        laws = None if draft_probs is None else draft_probs.contiguous()
        given = Drafts(
            logits=x,
            ids=draft_ids.to(torch.int32),
            laws=laws,
            layout=layout,
            bonus=bonus,
            temperature=rows.temperature,
            top_k=rows.top_k,
            top_p=rows.top_p,
            seed=rows.seed,
            step=rows.step,
            seeded=rows.seeded,
            noise=noise,
        )
        return self._kernel.verify(given)
