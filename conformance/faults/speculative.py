"""Speculative verification: the wrong draft law, the wrong row, the wrong residual.

Tests draw the drafts with noise of their own and mock the bonus sampler, so these pass.  The suite
has no verifier to ask yet.
"""

from __future__ import annotations

from refsampler.conformance.faults.base import Kind, Shelf

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.SPECULATIVE)

FAULTS.waits(
    "B023",
    "FlashInfer",
    "flashinfer-ai/flashinfer#425",
    "spec.law",
    "spec.greedy",
    summary="Chain verification is wrong where the laws are disjoint or the target is one id.",
)
