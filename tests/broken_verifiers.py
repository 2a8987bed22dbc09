"""Verifiers with one mistake each, beside those of the bank of public faults."""

from __future__ import annotations

from dataclasses import replace

import torch

from refsampler.conformance.faults.verifiers import RightVerifier


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
