"""Verifiers with one mistake each, beside those of the bank of public faults."""

from __future__ import annotations

from dataclasses import replace

import torch

from refsampler.backends.native import NativeKernel
from refsampler.backends.reference import ReferenceEngine, ReferenceSession
from refsampler.conformance.faults.verifiers import RightVerifier
from refsampler.positions import all_positions, drafts_of
from refsampler.sampler import Sampler


class AlwaysAccepts(RightVerifier):
    def accepted(self, draft_ids, p, q, uniforms):
        return super().accepted(draft_ids, p, q, uniforms) | (p.sum(-1) > 0)


class RecoversFromTarget(RightVerifier):
    """Draws from p in place of the positive part of p - q."""

    def recovered(self, p, q, noise):
        return super().recovered(p, torch.zeros_like(q), noise)


class OneUniform(RightVerifier):
    """The drafts of a request are accepted by one uniform."""

    def noise(self, sizes, like, generators):
        uniforms, races = super().noise(sizes, like, generators)
        firsts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        return uniforms[firsts], races


class OneRace(RightVerifier):
    """The requests of a batch share one recovery race."""

    def noise(self, sizes, like, generators):
        uniforms, races = super().noise(sizes, like, generators)
        return uniforms, races[:1].expand_as(races)


class SameUniforms(RightVerifier):
    """Accepts by the uniforms of its first call of a size."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def noise(self, sizes, like, generators):
        uniforms, races = super().noise(sizes, like, generators)
        return self.kept.setdefault(len(uniforms), uniforms), races


class SameRaces(RightVerifier):
    """Recovers by the races of its first call of a size."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def noise(self, sizes, like, generators):
        uniforms, races = super().noise(sizes, like, generators)
        return uniforms, self.kept.setdefault(races.shape, races)


class SameBonus(RightVerifier):
    """Draws the bonus from the same state of the generator again and again."""

    def __init__(self):
        super().__init__()
        right = self._sampler

        def sample(*args, **options):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(5)
                return right(*args, **options)

        self._sampler = _Wrapped(sample, right)  # type: ignore[assignment]  # as far as it is used


class _Wrapped:
    def __init__(self, sample, right):
        self._sample, self.process, self.logprobs_mode = sample, right.process, right.logprobs_mode

    def __call__(self, *args, **options):
        return self._sample(*args, **options)


class UnfilteredBonus(RightVerifier):
    """Top-p does not act on the bonus."""

    def __init__(self):
        super().__init__()
        kernel = NativeKernel()
        self._sampler = Sampler(
            filter_and_draw=lambda logits, rows: kernel.draw(logits, replace(rows, top_p=None)),
            folds=kernel.capabilities.folds,
        )


class FiltersOnce(RightVerifier):
    """Top-k and top-p act on the first position of a request only."""

    def positions(self, metadata):
        places = super().positions(metadata)
        behind = torch.tensor([place.drafts > 0 for place in all_positions(drafts_of(metadata))])
        return replace(
            places,
            top_k=None
            if places.top_k is None
            else places.top_k.masked_fill(behind, places.vocab_size),
            top_p=None if places.top_p is None else places.top_p.masked_fill(behind, 1.0),
        )


class SixtyFour(RightVerifier):
    """Rejects the 65th draft of the first request where there are many."""

    def accepted(self, draft_ids, p, q, uniforms):
        found = super().accepted(draft_ids, p, q, uniforms)
        return found & (torch.arange(len(found)) != 64) if len(found) > 128 else found


class DrawsFromNeighbours(RightVerifier):
    """Every request draws from the generator of the last seeded one."""

    def noise(self, sizes, like, generators):
        last = dict.fromkeys(generators, generators[max(generators)]) if generators else {}
        return super().noise(sizes, like, last)


class WrongError(RightVerifier):
    def verify(self, draft_ids, draft_probs, logits, metadata):
        if not metadata.logitsprocs.speculative:
            raise RuntimeError("no")
        return super().verify(draft_ids, draft_probs, logits, metadata)


class InPlace(RightVerifier):
    def verify(self, draft_ids, draft_probs, logits, metadata):
        output = super().verify(draft_ids, draft_probs, logits, metadata)
        logits.mul_(2)
        return output


class Backwards(RightVerifier):
    """Puts the ids last."""

    def verify(self, draft_ids, draft_probs, logits, metadata):
        output = super().verify(draft_ids, draft_probs, logits, metadata)
        return replace(output, token_ids=output.token_ids.roll(1, dims=1))


class Raises(RightVerifier):
    """Cannot verify requests without drafts."""

    def verify(self, draft_ids, draft_probs, logits, metadata):
        if any(not ids for ids in metadata.spec_token_ids or [()]):
            raise RuntimeError("empty")
        return super().verify(draft_ids, draft_probs, logits, metadata)


class KeepsRejected(ReferenceSession):
    """The drafts of the step before stay in the history, accepted or not."""

    def __init__(self, vocab, seed):
        super().__init__(vocab, seed)
        self._drafted = {}

    def verify(self, ids, drafts, draft_probs, logits):
        self._drafted = dict(zip(ids, drafts, strict=True))
        return super().verify(ids, drafts, draft_probs, logits)

    def accept(self, ids, tokens):
        behind = [
            (*self._drafted.get(one, ()), *gained[-1:])
            for one, gained in zip(ids, tokens, strict=True)
        ]
        super().accept(ids, behind)


class KeepsRejectedEngine(ReferenceEngine):
    def open(self, vocab, seed):
        return KeepsRejected(vocab, seed)


class NeverTheBonus(RightVerifier):
    """Where all drafts are accepted the bonus is left out."""

    def verify(self, draft_ids, draft_probs, logits, metadata):
        output = super().verify(draft_ids, draft_probs, logits, metadata)
        ids = output.token_ids.clone()
        if ids.shape[1] > 1:
            ids[:, -1] = -1
        return replace(output, token_ids=ids)


class LawOfNothing(RightVerifier):
    """Takes the law in a placeholder's row, and id 0 where it leaves nothing, as vLLM 0.25.1 does."""

    def laws(self, draft_ids, draft_probs, like):
        if draft_probs is not None:
            return draft_probs.float()
        return super().laws(draft_ids, draft_probs, like)

    def recovered(self, p, q, noise):
        return ((p - q).clamp(min=0) / noise).argmax(-1)
