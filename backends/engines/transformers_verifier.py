"""Hugging Face transformers' assisted decoding as a verifier: `_speculative_sampling` on given laws.

That function is the engine's algorithm 1: acceptance, recovery and bonus of one request, with noise
from torch's default generator, so that no request can have a seed.  The loop around it,
`_assisted_decoding`, needs a model; the few lines of it that decide about ids are written again
here: the engine's filters on every position, and, where a request is greedy or its drafts have no
law, ids selected at every position of which those count that agree with the drafts.  Masks and
penalties are the reference's and not declared, hence credited to nobody.  The engine takes draft
*logits*; it is given the logarithms of the draft laws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from refsampler.backends.engines.transformers import TransformersKernel
from refsampler.backends.protocol import Capabilities, Feature, Fold
from refsampler.drafts import Proposed, check_drafts, propose
from refsampler.folding import kernel_rows
from refsampler.metadata import SamplingMetadata
from refsampler.params import GREEDY_EPSILON
from refsampler.positions import all_positions, at_positions, drafts_of
from refsampler.request import PLACEHOLDER
from refsampler.sampler import Sampler, SamplerOutput, as_float32, temperatures
from refsampler.speculative import Verified
from refsampler.validation import ParameterError

__all__ = ["TransformersVerifier", "backend"]

_Step = Callable[..., tuple[Tensor, Tensor]]

_INF: Final = float("inf")
_KNOWN: Final = (
    # draft, then the ids that draft and target laws are sure of, then what must be emitted
    (1, 1, (1, 2), [1, 2]),
    (0, 0, (2, 1), [2]),
)


class TransformersVerifier:
    """Level 2: the engine's processors, its draw, and its verification, one request after another.

    Args:
        device: where the logits live.

    Raises:
        ModuleNotFoundError: transformers is not installed; the message names the extra.
        RuntimeError: its `_speculative_sampling` is gone, or fails on known answers.

    """

    def __init__(self, device: str = "cpu") -> None:
        self._kernel = TransformersKernel(device)
        of_kernel = self._kernel.capabilities
        self._step = _speculative_sampling(of_kernel.version)
        self._sampler = Sampler(filter_and_draw=self._kernel.draw, folds=of_kernel.folds)
        self.capabilities = Capabilities(
            name="transformers-verifier",
            version=of_kernel.version,
            level=2,
            device=device,
            semantics=of_kernel.semantics,
            features=frozenset({Feature.SPECULATIVE, Feature.DRAFT}),
        )

    def sample(
        self, logits: Float[Tensor, "num_tokens vocab"], metadata: SamplingMetadata
    ) -> SamplerOutput:
        """Sample one id a row, as the level-1 adapter does in the reference pipeline."""
        return self._sampler(logits, metadata)

    def draft(
        self, logits: Float[Tensor, "requests vocab"], metadata: SamplingMetadata
    ) -> Proposed:
        """Draw one draft of each request as `generate` does, and tell the law of its scores."""
        return propose(self._sampler, logits, metadata)

    def verify(
        self,
        draft_ids: Int[Tensor, " drafts"],
        draft_probs: Float[Tensor, "laws width"] | None,
        logits: Float[Tensor, "positions vocab"],
        metadata: SamplingMetadata,
    ) -> Verified:
        """Verify each request's drafts; the engine knows no placeholders, so drafts end before one.

        Raises:
            ValueError: what does not fit together, a seed, or logprobs.

        """
        drafts = drafts_of(metadata)
        check_drafts(draft_ids, draft_probs, logits, metadata, drafts)
        _refuse(metadata)
        positions = at_positions(metadata, all_positions(drafts))
        x = self._sampler.process(as_float32(logits), positions)
        temperature = temperatures(positions, x)
        scores = self._kernel.processed(x, kernel_rows(positions, temperature, frozenset(Fold)))
        emitted, place, law = [], 0, 0
        for ids in drafts:
            real = ids[: ids.index(PLACEHOLDER)] if PLACEHOLDER in ids else ids
            target = scores[place : place + len(real) + 1]
            if bool(temperature[place] < GREEDY_EPSILON):
                emitted.append(_agreeing(real, target.argmax(-1)))
            elif draft_probs is None or not real:
                emitted.append(_agreeing(real, target.softmax(-1).multinomial(1)[:, 0]))
            else:
                told = draft_probs[law : law + len(real)].float().log()
                candidates = torch.tensor([real], device=logits.device)
                valid, _ = self._step(candidates, told[None], len(real), target[None])
                emitted.append(valid[0].tolist())
            place, law = place + len(ids) + 1, law + len(ids)
        width = max(map(len, drafts), default=0) + 1
        rows = [[*ids, *[PLACEHOLDER] * (width - len(ids))] for ids in emitted]
        return Verified(
            torch.tensor(rows, dtype=torch.int32, device=logits.device).reshape(-1, width),
            None,
            torch.ones(len(rows), dtype=torch.bool, device=logits.device),
        )


def backend() -> TransformersVerifier:
    """Return the verifier on the CPU; a factory, because transformers is optional."""
    return TransformersVerifier()


def _agreeing(drafts: Sequence[int], selected: Tensor) -> list[int]:
    """Return the selected ids up to the first that is not its draft."""
    ids = cast("list[int]", selected.tolist())
    wrong = (place for place, draft in enumerate(drafts) if ids[place] != draft)
    return ids[: next(wrong, len(drafts)) + 1]


def _refuse(metadata: SamplingMetadata) -> None:
    """Refuse what the engine's function cannot honour."""
    if metadata.generators:
        raise ParameterError("seed", "a seed", "none: its noise is torch's default generator")
    if metadata.max_num_logprobs is not None or metadata.logprob_token_ids:
        raise ParameterError("logprobs", "a value", "none: it gives no logprobs of what it emits")


def _speculative_sampling(version: str) -> _Step:
    """Return the engine's function, checked on answers that no noise changes."""
    from transformers.generation import utils

    step: Any = getattr(utils, "_speculative_sampling", None)
    if step is None:
        raise RuntimeError(f"transformers {version} has no _speculative_sampling; 5.24.0 has")
    for draft, drafted, targets, right in _KNOWN:
        told, new = _certain(drafted), _certain(*targets)
        found = step(torch.tensor([[draft]]), told, 1, new)[0].tolist()
        if found != [right]:
            words = f"transformers {version}: _speculative_sampling gives {found[0]} for {right}"
            raise RuntimeError(words)
    return cast("_Step", step)


def _certain(*ids: int) -> Float32[Tensor, "one positions 3"]:
    """Return logits that are sure of one id a position."""
    rows = [[0.0 if token == one else -_INF for token in range(3)] for one in ids]
    return torch.tensor([rows])
