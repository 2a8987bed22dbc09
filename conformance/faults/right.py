"""A right kernel, a right sampler and a right engine with the hooks that faults override.

They are made of the reference, so that a fault is the one line in which it differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Capabilities, DType, Feature, Fold, Rows
from refsampler.backends.reference import ReferenceEngine, ReferenceSampler, ReferenceSession
from refsampler.batch_update import BatchUpdate
from refsampler.draw import exponential_noise
from refsampler.metadata import SamplingMetadata
from refsampler.processors import LogitsProcessor
from refsampler.sampler import Sampler, SamplerOutput
from refsampler.truncation import keep, keep_min_p, keep_top_k, keep_top_p

__all__ = ["DEEP", "RightEngine", "RightKernel", "RightSampler", "without_drafts"]


def without_drafts(capabilities: Capabilities) -> Capabilities:
    """Return the capabilities of a subject that plays no part in speculative decoding."""
    drafting = {Feature.SPECULATIVE, Feature.DRAFT}
    return replace(capabilities, features=capabilities.features - drafting)


class RightKernel:
    """The reference's filters and draw as a level-1 kernel that folds every step.

    The steps are `scaled`, `filtered` (`kept_min_p`, `kept_top_k`, `kept_top_p`), `drawn` (`law`,
    `noise`, `raced`) and `argmax`.
    """

    capabilities: Capabilities = Capabilities(
        "right",
        "1",
        1,
        dtypes=frozenset(DType),
        features=frozenset({Feature.SEED, Feature.BITWISE}),
        folds=frozenset(Fold),
    )

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        """Return one id a row."""
        x = logits.float()
        assert rows.temperature is not None
        greedy = rows.temperature == 0
        drawn = self.drawn(self.filtered(self.scaled(x, rows, greedy), rows), rows)
        return torch.where(greedy, self.argmax(x), drawn)

    def scaled(
        self, x: Float32[Tensor, "B V"], rows: Rows, greedy: Bool[Tensor, " B"]
    ) -> Float32[Tensor, "B V"]:
        """Divide by the temperature."""
        assert rows.temperature is not None
        return x / torch.where(greedy, 1.0, rows.temperature)[:, None]

    def filtered(self, x: Float32[Tensor, "B V"], rows: Rows) -> Float32[Tensor, "B V"]:
        """Mask what min-p, top-k and top-p remove."""
        if rows.min_p is not None:
            x = keep(x, self.kept_min_p(x, rows.min_p))
        if rows.top_k is not None:
            x = keep(x, self.kept_top_k(x, rows.top_k))
        if rows.top_p is not None:
            x = keep(x, self.kept_top_p(x, rows.top_p))
        return x

    def kept_min_p(
        self, x: Float32[Tensor, "B V"], min_p: Float32[Tensor, " B"]
    ) -> Bool[Tensor, "B V"]:
        """Return what min-p keeps."""
        return keep_min_p(x, min_p)

    def kept_top_k(self, x: Float32[Tensor, "B V"], top_k: Tensor) -> Bool[Tensor, "B V"]:
        """Return what top-k keeps."""
        return keep_top_k(x, top_k)

    def kept_top_p(
        self, x: Float32[Tensor, "B V"], top_p: Float32[Tensor, " B"]
    ) -> Bool[Tensor, "B V"]:
        """Return what top-p keeps."""
        return keep_top_p(x, top_p)

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        """Race every row."""
        probs = self.law(torch.softmax(x.double(), dim=-1))
        return self.raced(probs, self.noise(probs, rows.generators))

    def law(self, probs: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        """Return the law that is drawn from; it need not be normalised."""
        return probs

    def noise(
        self, like: Float64[Tensor, "B V"], generators: Mapping[int, torch.Generator]
    ) -> Float64[Tensor, "B V"]:
        """Return Exp(1) noise."""
        return exponential_noise(like, generators)

    def raced(
        self, probs: Float64[Tensor, "B V"], noise: Float64[Tensor, "B V"]
    ) -> Int64[Tensor, " B"]:
        """Return the winners; an id without probability loses against any noise."""
        score = torch.where(probs > 0, probs / noise, -torch.ones_like(probs))
        return score.argmax(dim=-1)

    def argmax(self, x: Float32[Tensor, "B V"]) -> Int64[Tensor, " B"]:
        """Return the lowest of the most likely ids."""
        return x.argmax(dim=-1)


DEEP: Final = replace(RightKernel.capabilities, floor=1e-8)
"""Of kernels that claim ids as unlikely as their faults are about: a tail below the floor that is
declared fails nobody."""


class RightSampler:
    """The reference as a level-2 backend with every logprobs mode.

    The hooks are `changed`, `kernel`, `before_penalties` and `shown`.
    """

    capabilities: Capabilities = without_drafts(ReferenceSampler().capabilities)

    def __init__(self) -> None:
        self.reference = ReferenceSampler()

    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, logprobs_mode: str | None = None
    ) -> SamplerOutput:
        """Sample one id a row, as `changed` has the metadata and `shown` the output."""
        changed = self._hooked(self.changed(metadata)) if len(logits) else metadata
        kernel = self.kernel(logits)
        if kernel is None:
            output = self.reference.sample(logits, changed, logprobs_mode=logprobs_mode)
        else:
            sampler = Sampler(filter_and_draw=kernel.draw, folds=frozenset(Fold))
            output = sampler(logits, changed, logprobs_mode=logprobs_mode)
        return self.shown(output) if output.logprobs_tensors is not None else output

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        """Return the metadata that is sampled with."""
        return metadata

    def kernel(self, logits: Float[Tensor, "B V"]) -> RightKernel | None:
        """Return what does step 7; None is the reference."""
        return None

    def before_penalties(
        self, x: Float32[Tensor, "B V"], metadata: SamplingMetadata
    ) -> Float32[Tensor, "B V"]:
        """Return the logits that the penalties act on; called if there are any."""
        return x

    def _hooked(self, metadata: SamplingMetadata) -> SamplingMetadata:
        if metadata.no_penalties:
            return metadata
        before = _Before(lambda x: self.before_penalties(x, metadata))
        processors = metadata.logitsprocs
        early = (*processors.non_argmax_invariant, before)
        return replace(metadata, logitsprocs=replace(processors, non_argmax_invariant=early))

    def shown(self, output: SamplerOutput) -> SamplerOutput:
        """Return the output with logprobs that the caller gets."""
        return output


class _Before(LogitsProcessor):
    """A processor that acts last of those before the penalties."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        self.act = act

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: Float32[Tensor, "B V"]) -> Float32[Tensor, "B V"]:
        return self.act(logits)


class RightEngine(ReferenceEngine):
    """The reference engine; `session` is what a wrong one replaces."""

    session: type[ReferenceSession] = ReferenceSession

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = without_drafts(self.capabilities)

    def open(self, vocab: int, seed: int) -> ReferenceSession:
        """Start a session of that type."""
        return self.session(vocab, seed)
