"""Early acceptance: sampling may stop once every declared alternative is refuted.

If alternative q is the true law, 1/e of its own bet is an e-process too: with e = clip(q/p, a, b),
E_q[1/e] = sum_x q/e = 1, because clipping at b adds delta of mass (sum (q/b - p)_+) and clipping at a
removes as much (sum (p - q/a)_+).  So P_q(e ever falls to beta) <= beta (Ville).  Products over
cases keep this for a fault that all cases share.  A bet on a law inside the tolerance stays at 1 and
is never refuted.  Acceptance speaks about declared alternatives only; plans keep their least number
of draws for the generic bets.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import BoolArray, FloatArray
from refsampler.conformance.evidence.guarantees import BETA

__all__ = ["BETA_EARLY", "refuted"]

BETA_EARLY: Final = BETA / 2
"""Half of beta; the other half is spent at the largest number of draws."""


def refuted(log_components: FloatArray, beta: float = BETA_EARLY) -> BoolArray:
    """Return which alternatives are refuted, from their log e at any look.

    Args:
        log_components: [alternatives] of a case, or summed over cases.
        beta: probability of refuting a true alternative, each.

    Raises:
        ValueError: beta is no probability.

    """
    if not 0 < beta < 1:
        raise ValueError(f"beta = {beta} is refused: allowed is 0 < beta < 1")
    return np.asarray(log_components) <= math.log(beta)
