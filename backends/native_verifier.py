"""Plain torch for speculative decoding: all drafts of a batch verified at once, in float32.

The formulation is vLLM 0.25.1's: accept while p/q >= u, recover by a race over max(p - q, 0).  It
differs where the contract does: an id without target mass is never accepted, an empty residual falls
back to the target, and the bonus position counts its drafts towards min tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Float32, Int, Int64
from torch import Tensor

from refsampler.backends.drafting import PIPELINE, DraftingSampler
from refsampler.backends.native import NativeKernel, filter_logits
from refsampler.backends.protocol import Capabilities, DType, Feature
from refsampler.drafts import check_drafts
from refsampler.folding import divisor
from refsampler.logprobs import gather, has_law, shown_values
from refsampler.metadata import SamplingMetadata
from refsampler.params import GREEDY_EPSILON
from refsampler.positions import all_positions, at_positions, drafts_of
from refsampler.request import PLACEHOLDER
from refsampler.sampler import Sampler, as_float32, temperatures
from refsampler.speculative import Verified

__all__ = ["NativeVerifier", "backend"]


class NativeVerifier(DraftingSampler):
    """Level 2: the native kernel in the reference pipeline, and a verifier of drafts.

    Args:
        device: where the logits live.

    """

    def __init__(self, device: str = "cpu") -> None:
        kernel = NativeKernel(device)
        super().__init__(Sampler(filter_and_draw=kernel.draw, folds=kernel.capabilities.folds))
        self.capabilities = Capabilities(
            name="native-verifier",
            version=kernel.capabilities.version,
            level=2,
            device=device,
            dtypes=frozenset(DType),
            features=(kernel.capabilities.features & {Feature.SEED, Feature.BITWISE}) | PIPELINE,
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
        device, count = logits.device, len(drafts)
        sizes = torch.tensor([len(ids) for ids in drafts], dtype=torch.int64, device=device)
        last = (sizes + 1).cumsum(0) - 1
        bonus = self._sampler(
            logits[last],
            replace(metadata, max_num_logprobs=None, logprob_token_ids=None),
            predict_bonus_token=True,
        ).sampled_token_ids[:, 0]
        positions = self.positions(metadata)
        raw = as_float32(logits)
        x = self._sampler.process(raw, positions)
        temperature = temperatures(positions, x)
        greedy = temperature < GREEDY_EPSILON
        filtered = filter_logits(
            x / divisor(temperature)[:, None], positions.top_k, positions.top_p
        )
        processed = torch.where(greedy[:, None], x, filtered)

        # the same for every request: its drafts in the columns of a rectangle
        width = int(sizes.max()) if count else 0
        column = torch.arange(width + 1, device=device)
        first = last - sizes
        is_draft = column[:width] < sizes[:, None]
        rows = (first[:, None] + column[:width])[is_draft]
        p = filtered[rows].softmax(-1)
        q = self.laws(draft_ids, draft_probs, p)
        uniforms, races = self.noise(sizes, p, metadata.generators)
        best = x.argmax(-1)
        accepted = torch.where(
            greedy[rows],
            draft_ids == best[rows],
            self.accepted(draft_ids, p, q, uniforms),
        )
        lengths = _prefix(accepted, is_draft)

        # one id behind the accepted drafts: the bonus, the argmax, or a recovered id
        at = first + lengths
        rejected = lengths < sizes
        draft_at = at - torch.arange(count, device=device)
        behind = bonus.long()
        if bool(rejected.any()):
            which = draft_at[rejected]
            recovered = self.recovered(p[which], q[which], races[rejected])
            replaced = torch.where(greedy[at[rejected]], best[at[rejected]], recovered)
            behind = behind.masked_scatter(rejected, replaced)
        tokens = torch.full((count, width + 1), PLACEHOLDER, dtype=torch.int64, device=device)
        tokens[:, :width][is_draft] = draft_ids.long()
        tokens = tokens.masked_fill(column >= lengths[:, None], PLACEHOLDER)
        tokens = tokens.scatter(1, lengths[:, None], behind[:, None])

        place = column <= sizes[:, None]
        emitted = (column <= lengths[:, None])[place]
        lawful = torch.ones_like(place).masked_scatter(place, has_law(processed) | ~emitted)
        logprobs = gather(
            shown_values(self._sampler.logprobs_mode, raw, processed),
            torch.where(emitted, tokens[place], 0),
            positions.max_num_logprobs,
            positions.logprob_token_ids or {},
        )
        return Verified(tokens.to(torch.int32), logprobs, lawful.all(-1))

    def positions(self, metadata: SamplingMetadata) -> SamplingMetadata:
        """Return the batch with a row for each position."""
        return at_positions(metadata, all_positions(drafts_of(metadata)))

    def laws(
        self,
        draft_ids: Int[Tensor, " drafts"],
        draft_probs: Float[Tensor, "laws width"] | None,
        like: Float32[Tensor, "drafts vocab"],
    ) -> Float32[Tensor, "drafts vocab"]:
        """Return the law of each draft; certain ones are one-hot, placeholders have no mass."""
        real = (draft_ids != PLACEHOLDER)[:, None]
        if draft_probs is not None:
            return draft_probs.float().masked_fill(~real, 0.0)
        ids = draft_ids.long().clamp(min=0)[:, None]
        return torch.zeros_like(like).scatter(1, ids, real.float())

    def noise(
        self,
        sizes: Int64[Tensor, " requests"],
        like: Float32[Tensor, "drafts vocab"],
        generators: Mapping[int, torch.Generator],
    ) -> tuple[Tensor, Float32[Tensor, "requests vocab"]]:
        """Return one uniform a draft and one race a request; those with seeds use their own."""
        counts: Sequence[int] = sizes.tolist()
        uniforms = torch.rand(like.shape[0], dtype=torch.float64, device=like.device)
        races = like.new_empty((len(counts), like.shape[1])).exponential_()
        start = 0
        for row, size in enumerate(counts):
            if size and row in generators:
                uniforms[start : start + size].uniform_(generator=generators[row])
                races[row].exponential_(generator=generators[row])
            start += size
        return uniforms, races

    def accepted(
        self,
        draft_ids: Int[Tensor, " drafts"],
        p: Float32[Tensor, "drafts vocab"],
        q: Float32[Tensor, "drafts vocab"],
        uniforms: Tensor,
    ) -> Bool[Tensor, " drafts"]:
        """Accept with probability min(1, p/q); without draft mass never."""
        ids = draft_ids.long().clamp(min=0)[:, None]
        p_at, q_at = p.gather(1, ids)[:, 0].double(), q.gather(1, ids)[:, 0].double()
        return (q_at > 0) & (uniforms * q_at < p_at)

    def recovered(
        self,
        p: Float32[Tensor, "requests vocab"],
        q: Float32[Tensor, "requests vocab"],
        noise: Float32[Tensor, "requests vocab"],
    ) -> Int64[Tensor, " requests"]:
        """Draw from the positive part of p - q, or from p where it is empty."""
        residual = (p - q).clamp(min=0)
        law = torch.where(residual.any(-1, keepdim=True), residual, p)
        return torch.where(law > 0, law / noise, -1.0).argmax(-1)


def _prefix(
    accepted: Bool[Tensor, " drafts"], is_draft: Bool[Tensor, "requests width"]
) -> Int64[Tensor, " requests"]:
    """Return how many drafts of each request are accepted before the first that is not."""
    walked = torch.zeros_like(is_draft, dtype=torch.int64).masked_scatter(
        is_draft, accepted.to(torch.int64)
    )
    return walked.cumprod(dim=1).sum(dim=1)


backend = NativeVerifier()
