"""FlashInfer's `chain_speculative_sampling` as a verifier of drafts.

The call takes requests of one number of drafts, laws in float32 and one seed for all.  Here requests
are grouped by their number of drafts; what else it cannot take never reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

import torch
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor

from refsampler.backends.drafting import PIPELINE, DraftingSampler
from refsampler.backends.emitted import all_of, emitted_ids
from refsampler.backends.flashinfer import FlashInferKernel, imported
from refsampler.backends.native import filter_logits
from refsampler.backends.native_verifier import NativeVerifier
from refsampler.backends.protocol import Capabilities, DType
from refsampler.drafts import check_drafts, draft_laws
from refsampler.folding import divisor
from refsampler.logprobs import gather, has_law, shown_values
from refsampler.metadata import SamplingMetadata
from refsampler.params import GREEDY_EPSILON
from refsampler.positions import all_positions, at_positions, drafts_of
from refsampler.request import PLACEHOLDER
from refsampler.sampler import Sampler, as_float32, temperatures
from refsampler.speculative import Verified

__all__ = ["FlashInferVerifier", "backend"]

_MOST_ELEMENTS: Final = 2**31
"""Target probabilities of one call; the kernel numbers them in 32 bits."""


class FlashInferVerifier(DraftingSampler):
    """Level 2: FlashInfer's kernel in the reference pipeline, and its verifier of drafts.

    Temperature and filters act before, in torch.  FlashInfer has one seed a call: a step with a
    seeded request is verified by `NativeVerifier`.  A greedy request is handed over with certain
    laws, target and draft.  A placeholder would be read as an id: the chain of its request ends
    before it, and what stands there is drawn from the target, as behind the last draft.  Where the
    target is no law (NaN, +inf or nothing finite) the argmax of its numbers is certain.

    Args:
        device: where the logits live.

    Raises:
        ModuleNotFoundError: flashinfer is not installed; the message names the extra.

    """

    def __init__(self, device: str = "cuda") -> None:
        self._sampling = imported()
        kernel = FlashInferKernel(device)
        self._native = NativeVerifier(device)
        super().__init__(Sampler(filter_and_draw=kernel.draw, folds=kernel.capabilities.folds))
        self.capabilities = Capabilities(
            name="flashinfer-verifier",
            version=kernel.capabilities.version,
            level=2,
            device=device,
            semantics=kernel.capabilities.semantics,
            by_path={"native-verifier": self._native.capabilities.semantics},
            floor=kernel.capabilities.floor,
            dtypes=frozenset(DType),
            features=PIPELINE,
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
        if metadata.generators or not drafts:
            return self._native.verify(draft_ids, draft_probs, logits, metadata)
        check_drafts(draft_ids, draft_probs, logits, metadata, drafts)
        positions = at_positions(metadata, all_positions(drafts))
        raw = as_float32(logits)
        x = self._sampler.process(raw, positions)
        temperature = temperatures(positions, x)
        filtered = filter_logits(
            x / divisor(temperature)[:, None], positions.top_k, positions.top_p
        )
        certain = (temperature < GREEDY_EPSILON) | ~has_law(filtered)
        targets = torch.where(certain[:, None], _argmax(x), filtered.softmax(-1))
        owner = [row for row, ids in enumerate(drafts) for _ in ids]
        of_draft = torch.arange(len(owner)) + torch.tensor(owner, dtype=torch.int64)
        own, told = (draft_laws(draft_ids, one, x.shape[1]).float() for one in (None, draft_probs))
        laws = torch.where(certain[of_draft.to(x.device)][:, None], own, told)

        width = max(map(len, drafts)) + 1
        shape = (len(drafts), width)
        tokens = torch.full(shape, PLACEHOLDER, dtype=torch.int32, device=logits.device)
        for chain in _chains(drafts, logits.shape[1]):
            tokens[chain.requests, : chain.drafts + 1] = self._walk(chain, draft_ids, laws, targets)
        sizes = [len(ids) for ids in drafts]
        emitted = emitted_ids(tokens, sizes)
        return Verified(
            token_ids=tokens,
            logprobs_tensors=gather(
                shown_values(self._sampler.logprobs_mode, raw, x),
                emitted.clamp(min=0),
                positions.max_num_logprobs,
                positions.logprob_token_ids or {},
            ),
            valid=all_of(has_law(x) | (emitted < 0), sizes),
        )

    def _walk(
        self,
        chain: _Chain,
        draft_ids: Int[Tensor, " drafts"],
        laws: Float32[Tensor, "drafts vocab"],
        targets: Float32[Tensor, "positions vocab"],
    ) -> Int32[Tensor, "requests places"]:
        """Make one call; without drafts there is nothing to verify, and an id is drawn."""
        first = torch.tensor(chain.positions, device=targets.device)[:, None]
        places = torch.arange(chain.drafts + 1, device=targets.device)
        target = targets[first + places]
        if not chain.drafts:
            ids = self._sampling.sampling_from_probs(target[:, 0], deterministic=True)
            return cast("Tensor", ids)[:, None]
        which = torch.tensor(chain.first, device=targets.device)[:, None] + places[:-1]
        ids, _, _ = self._sampling.chain_speculative_sampling(
            laws[which], draft_ids.to(torch.int32)[which], target, deterministic=True
        )
        return cast("Tensor", ids)


@dataclass(frozen=True, slots=True)
class _Chain:
    """Requests of one call.

    Attributes:
        drafts: of each.
        requests: their rows.
        positions, first: of each the first position, and the first draft.

    """

    drafts: int
    requests: list[int]
    positions: list[int]
    first: list[int]


def _chains(drafts: Sequence[Sequence[int]], vocab: int) -> Iterator[_Chain]:
    """Yield the requests by how many drafts come before a placeholder, as many as a call can take."""
    by_drafts: dict[int, list[int]] = {}
    for row, ids in enumerate(drafts):
        real = list(ids).index(PLACEHOLDER) if PLACEHOLDER in ids else len(ids)
        by_drafts.setdefault(real, []).append(row)
    before = [0]
    for ids in drafts:
        before.append(before[-1] + len(ids))
    for count, rows in by_drafts.items():
        most = max(1, _MOST_ELEMENTS // ((count + 1) * vocab))
        for start in range(0, len(rows), most):
            part = rows[start : start + most]
            first = [before[row] for row in part]
            yield _Chain(count, part, [before[row] + row for row in part], first)


def _argmax(x: Float32[Tensor, "positions vocab"]) -> Float32[Tensor, "positions vocab"]:
    """Return laws that are certain of the largest number, of id 0 where there is none."""
    best = x.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argmax(-1)
    return torch.zeros_like(x).scatter(-1, best[:, None], 1.0)


backend: Callable[[], FlashInferVerifier] = FlashInferVerifier
"""On a CUDA device that FlashInfer supports."""
