"""The exact law of what a verifier emits, from target and draft laws in float64.

Beside `law`: that gives the target law of each position, this what has to come out of a step.
Stated a second time, so that a comparison with `speculative` means something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from refsampler.request import Request

__all__ = ["acceptance_rate", "emitted_given", "emitted_pair", "position_requests"]


def position_requests(requests: Sequence[Request]) -> tuple[Request, ...]:
    """Return every position of every request as a request of plain decoding (`spec.history`).

    In the order of a verifier's logits: of each request its drafts' positions, then the bonus'.
    """
    return tuple(
        replace(one, output=(*one.output, *one.drafts[:before]), drafts=())
        for one in requests
        for before in range(len(one.drafts) + 1)
    )


def acceptance_rate(
    target: Float64[Tensor, "*rows vocab"], draft: Float64[Tensor, "*rows vocab"]
) -> Float64[Tensor, " *rows"]:
    """Return the probability that a draft is accepted: sum_v min(p_v, q_v), 1 - TV(p, q)."""
    return torch.minimum(target, draft).sum(-1)


def emitted_given(
    token: int, target: Float64[Tensor, " vocab"], draft: Float64[Tensor, " vocab"]
) -> Float64[Tensor, " vocab"]:
    """Return the law of the id emitted at a position whose draft is `token` (clause `spec.law`).

    Averaged over drafts from their law it is the target; for one draft it is not.

    Args:
        token: the draft, of positive probability in the draft law.
        target: law of the position.
        draft: law that the draft was drawn from.

    """
    accepted = min(1.0, float(target[token] / draft[token]))
    left = torch.maximum(target - draft, torch.zeros_like(target))
    recovered = left / left.sum() if left.any() else target
    certain = (torch.arange(len(target), device=target.device) == token).double()
    return accepted * certain + (1 - accepted) * recovered


def emitted_pair(
    first: Float64[Tensor, " vocab"],
    draft: Float64[Tensor, " vocab"],
    second: Float64[Tensor, "vocab vocab"],
) -> Float64[Tensor, "vocab columns"]:
    """Return the joint law of the first two ids of a step with at least one draft (`spec.law`).

    Cell (a, b) is the probability of a followed by b; in the last column nothing follows, since
    the draft was rejected.  A second id has the target law given the first, be it a draft, a
    recovered or a bonus id, hence whatever the later drafts are.

    Args:
        first: target law of the first position.
        draft: law of the first draft.
        second: row a is the target law behind a.

    """
    accepted = torch.minimum(first, draft)
    return torch.cat([accepted[:, None] * second, (first - accepted)[:, None]], dim=-1)
