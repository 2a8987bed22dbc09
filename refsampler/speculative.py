"""Speculative decoding: drafts are verified so that what is emitted has the target law (`spec.law`).

A draft d that was drawn from the law q is accepted with probability min(1, p(d)/q(d)), p being the
target law of its position.  The first one that is not is replaced by an id drawn from the positive
part of p - q, and nothing behind it counts; if all are accepted, a bonus id follows.  Whatever q was,
each id emitted has the law p given those before it: Leviathan et al. (arXiv 2211.17192), Chen et al.
(arXiv 2302.01318).  Read `RejectionSampler.__call__`, then `walk_greedy` and `walk_random`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Int32, Int64
from torch import Tensor

from refsampler.drafts import check_drafts, draft_laws
from refsampler.draw import exponential_noise, race
from refsampler.logprobs import LogprobsTensors, gather, has_law, shown_values
from refsampler.metadata import SamplingMetadata
from refsampler.params import GREEDY_EPSILON
from refsampler.positions import all_positions, at_positions, drafts_of
from refsampler.request import PLACEHOLDER
from refsampler.sampler import Sampler, as_float32, filter_logits, temperatures

__all__ = [
    "RejectionSampler",
    "Verified",
    "accepts",
    "recover",
    "walk_greedy",
    "walk_random",
]


@dataclass(frozen=True, slots=True)
class Verified:
    """What one step emits.

    Attributes:
        token_ids: of each request the accepted drafts and one id more; -1 in the cells behind.
        logprobs_tensors: None unless a request asked for logprobs; one row a position, in the
            order of the logits, which shows id 0 where nothing was emitted.
        valid: False where an id was emitted at a position without a law (clause `mask.empty`).

    """

    token_ids: Int32[Tensor, "requests positions"]
    logprobs_tensors: LogprobsTensors | None
    valid: Bool[Tensor, " requests"]

    def emitted(self) -> list[list[int]]:
        """Return the ids of each request without the cells behind them."""
        rows: list[list[int]] = self.token_ids.tolist()
        return [[token for token in row if token != PLACEHOLDER] for row in rows]


class RejectionSampler:
    """The reference verifier.

    Args:
        sampler: samples the bonus id and processes the targets; the reference's if None.

    """

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.sampler = Sampler() if sampler is None else sampler

    def __call__(
        self,
        draft_ids: Int[Tensor, " drafts"],
        draft_probs: Float[Tensor, "laws width"] | None,
        logits: Float[Tensor, "positions vocab"],
        metadata: SamplingMetadata,
    ) -> Verified:
        """Verify the drafts of a batch; requests may have different numbers of them.

        Args:
            draft_ids: `metadata.spec_token_ids` in one row; a placeholder is rejected.
            draft_probs: the law that each draft was drawn from, a row a draft; None if each was
                certain.
            logits: of each request in turn one row for each of its drafts, then its bonus row.
            metadata: the batch, made for speculative decoding.

        Raises:
            TypeError: the logits have another dtype (clause `input.dtypes`).
            ValueError: the shapes do not fit together, a law is none, a request has more than 128
                drafts, or the batch has processors that drafts do not admit (`spec.processors`).

        """
        drafts = drafts_of(metadata)
        check_drafts(draft_ids, draft_probs, logits, metadata, drafts)
        if not drafts:
            return _no_requests(logits)
        sizes = [len(ids) for ids in drafts]
        positions = at_positions(metadata, all_positions(drafts))
        last = torch.tensor([size + 1 for size in sizes], device=logits.device).cumsum(0) - 1

        # the id behind all drafts, as in plain decoding
        bonus = self.sampler(
            logits[last],
            replace(metadata, max_num_logprobs=None, logprob_token_ids=None),
            predict_bonus_token=True,
        )
        # the target of every position: what plain decoding would take there
        raw = as_float32(logits)
        x = self.sampler.process(raw, positions)
        temperature = temperatures(positions, x)
        greedy = temperature < GREEDY_EPSILON
        processed = torch.where(greedy[:, None], x, filter_logits(x, temperature, positions))
        targets = processed.argmax(-1), processed.double().softmax(-1)
        laws = draft_laws(draft_ids, draft_probs, logits.shape[1])

        emitted = []
        by_request = zip(
            drafts,
            bonus.sampled_token_ids[:, 0].tolist(),
            *(torch.split(one, [size + 1 for size in sizes]) for one in targets),
            torch.split(laws, sizes),
            greedy[last].tolist(),
            strict=True,
        )
        for row, (ids, extra, best, p, q, takes_best) in enumerate(by_request):
            if takes_best:
                emitted.append(walk_greedy(ids, best, extra))
            else:
                noise = _Noise.of(len(ids), p[0], metadata.generators.get(row))
                emitted.append(walk_random(ids, p, q, noise.uniforms, noise.race, extra))
        return Verified(
            token_ids=_padded(emitted, max(sizes) + 1, logits.device),
            logprobs_tensors=self._logprobs(raw, processed, emitted, sizes, positions),
            valid=_valid(has_law(processed), emitted, sizes),
        )

    def _logprobs(
        self,
        raw: Float32[Tensor, "positions vocab"],
        processed: Float32[Tensor, "positions vocab"],
        emitted: Sequence[Sequence[int]],
        sizes: Sequence[int],
        positions: SamplingMetadata,
    ) -> LogprobsTensors | None:
        """Return what each position's request asked for (clause `logprobs.gather`)."""
        shown = [
            (*ids, *[0] * (size + 1 - len(ids))) for ids, size in zip(emitted, sizes, strict=True)
        ]
        return gather(
            shown_values(self.sampler.logprobs_mode, raw, processed),
            torch.tensor([token for ids in shown for token in ids], device=raw.device),
            positions.max_num_logprobs,
            positions.logprob_token_ids or {},
        )


def walk_greedy(
    drafts: Sequence[int], best: Int64[Tensor, " positions"], bonus: int
) -> tuple[int, ...]:
    """Return the drafts that are the argmax, up to the first that is not (clause `spec.greedy`).

    Args:
        drafts: of one request.
        best: the argmax at each draft.
        bonus: the argmax behind them.

    """
    for place, draft in enumerate(drafts):
        if draft != best[place]:
            return (*drafts[:place], int(best[place]))
    return (*drafts, bonus)


def walk_random(
    drafts: Sequence[int],
    p: Float64[Tensor, "positions vocab"],
    q: Float64[Tensor, "drafts vocab"],
    uniforms: Float64[Tensor, " drafts"],
    noise: Float64[Tensor, " vocab"],
    bonus: int,
) -> tuple[int, ...]:
    """Return the accepted drafts and one id more (clause `spec.law`).

    Args:
        drafts: of one request.
        p: target law at each draft.
        q: draft law at each draft.
        uniforms: in [0, 1), one for each acceptance.
        noise: Exp(1); one race is enough, since only the first rejected draft is replaced.
        bonus: drawn from the target behind all drafts.

    """
    for place, draft in enumerate(drafts):
        if not accepts(draft, p[place], q[place], float(uniforms[place])):
            return (*drafts[:place], recover(p[place], q[place], noise))
    return (*drafts, bonus)


def accepts(
    draft: int, p: Float64[Tensor, " vocab"], q: Float64[Tensor, " vocab"], uniform: float
) -> bool:
    """Accept with probability min(1, p/q), hence never an id that the target forbids."""
    if draft == PLACEHOLDER or q[draft] <= 0:
        return False
    return bool(uniform * q[draft] < p[draft])


def recover(
    p: Float64[Tensor, " vocab"], q: Float64[Tensor, " vocab"], noise: Float64[Tensor, " vocab"]
) -> int:
    """Draw from the positive part of p - q, or from p where nothing is left (`spec.degenerate`)."""
    residual = (p - q).clamp(min=0)
    return int(race(residual if residual.any() else p, noise))


@dataclass(frozen=True, slots=True)
class _Noise:
    """What one random request consumes, in this order; without drafts nothing."""

    uniforms: Float64[Tensor, " drafts"]
    race: Float64[Tensor, " vocab"]

    @classmethod
    def of(
        cls, drafts: int, like: Float64[Tensor, " vocab"], generator: torch.Generator | None
    ) -> _Noise:
        if not drafts:
            return cls(like[:0], torch.ones_like(like))
        uniforms = torch.rand(drafts, dtype=like.dtype, device=like.device, generator=generator)
        own = {} if generator is None else {0: generator}
        return cls(uniforms, exponential_noise(like[None], own)[0])


def _padded(
    emitted: Sequence[Sequence[int]], width: int, device: torch.device
) -> Int32[Tensor, "requests positions"]:
    """Return the ids with placeholders behind them."""
    rows = [(*ids, *[PLACEHOLDER] * (width - len(ids))) for ids in emitted]
    return torch.tensor(rows, dtype=torch.int32, device=device)


def _valid(
    lawful: Bool[Tensor, " positions"], emitted: Sequence[Sequence[int]], sizes: Sequence[int]
) -> Bool[Tensor, " requests"]:
    """Say of each request whether every id came from a position with a law."""
    by_request = torch.split(lawful, [size + 1 for size in sizes])
    found = [row[: len(ids)].all() for row, ids in zip(by_request, emitted, strict=True)]
    return torch.stack(found)


def _no_requests(logits: Float[Tensor, "positions vocab"]) -> Verified:
    """Return no ids for no requests."""
    return Verified(
        token_ids=torch.empty((0, 1), dtype=torch.int32, device=logits.device),
        logprobs_tensors=None,
        valid=torch.empty(0, dtype=torch.bool, device=logits.device),
    )
