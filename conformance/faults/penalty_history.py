"""Penalty history: which ids were seen, how often, and until when.

A single step with a hand-made history passes on all of these; several steps compared with a slow
recount do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from refsampler.backends.reference import ReferenceSession
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightEngine, RightSampler
from refsampler.metadata import SamplingMetadata

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.PENALTY_HISTORY)


@FAULTS.fault("B089", "vmlx-swift", "osaurus-ai/vmlx-swift#296", "penalty.history")
class _WindowOfTwenty(RightSampler):
    """Presence looks at the last 20 ids in place of the whole output."""

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        outputs = [tuple(one)[-20:] for one in metadata.output_token_ids]
        return replace(metadata, output_token_ids=outputs)


class _LastAcceptedOnly(ReferenceSession):
    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        super().accept(ids, [tuple(one)[-1:] for one in tokens])


@FAULTS.fault("B098", "SGLang", "sgl-project/sglang#33643", "penalty.history", "mask.min-tokens")
class _LastAccepted(RightEngine):
    """Of the tokens accepted in one step only the last becomes history."""

    session = _LastAcceptedOnly
