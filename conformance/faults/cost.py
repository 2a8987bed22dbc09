"""Cost: cliffs that correctness suites never see.

The suite times a step with a long history against one with a short one and prints the ratio; a time
is no proof, so no ratio fails a run.
"""

from __future__ import annotations

from refsampler.conformance.faults.base import Kind, Shelf

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.COST)

_REASON = "cost.bounded is a ratio that a run reports and never fails"

FAULTS.out_of_scope(
    "B136",
    "vLLM / FlashInfer",
    "vllm-project/vllm#28099",
    summary="Of two equivalent entry points one takes twice as long, as it masks another way.",
    reason=_REASON,
)

FAULTS.out_of_scope(
    "B140",
    "vLLM V0",
    "vllm-project/vllm#13247",
    summary="With penalties on, each step makes its tensors from the whole history again.",
    reason=_REASON,
)
