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
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from refsampler.conformance.evidence.alternatives import Weighted
from refsampler.conformance.evidence.arrays import BoolArray, FloatArray
from refsampler.conformance.evidence.guarantees import BETA

__all__ = ["BETA_AT_MAX", "BETA_EARLY", "Action", "Decision", "Look", "decide", "refuted"]

BETA_EARLY: Final = BETA / 2
"""Half of beta, spent on early acceptance."""

BETA_AT_MAX: Final = BETA / 2
"""The other half: N_max is the number of draws after which a bias is missed with it at most."""


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


class Action(StrEnum):
    """What follows from a look."""

    REJECT = "reject"
    ACCEPT_EARLY = "accept early"
    ACCEPT_AT_MAX = "accept at the largest number of draws"
    GO_ON = "go on"


@dataclass(frozen=True, slots=True)
class Look:
    """The evidence of a clause at one look.

    Attributes:
        log_e: of the clause.
        log_components: [alternatives] log e, of a case or summed over cases.
        draws: so far.

    """

    log_e: float
    log_components: FloatArray
    draws: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and what was reached.

    Attributes:
        action: what follows.
        log_e: of the clause.
        draws: so far.
        refuted: names of the declared alternatives that are not the law, but for `BETA_EARLY` each.
        open: names of those that are awaited and not refuted.

    """

    action: Action
    log_e: float
    draws: int
    refuted: tuple[str, ...]
    open: tuple[str, ...]


def decide(
    look: Look,
    bank: Sequence[Weighted],
    log_threshold: float,
    *,
    least_draws: int,
    most_draws: int,
    awaited: BoolArray | None = None,
) -> Decision:
    """Say whether to stop.

    Args:
        look: the evidence now.
        bank: the declared alternatives.
        log_threshold: ln(1/alpha) of the clause.
        least_draws: before them nothing is accepted: the generic bets need them.
        most_draws: N_max, planned with `BETA_AT_MAX`.
        awaited: [alternatives] those that the plan lists for these draws; others, as those inside
            the tolerance, do not hold up acceptance.  None: all.

    Raises:
        ValueError: the look has another bank.

    """
    if look.log_components.shape != (len(bank),):
        msg = f"log_components of shape {look.log_components.shape} are refused: allowed is "
        raise ValueError(msg + f"({len(bank)},)")
    gone = refuted(look.log_components)
    listed = np.ones(len(bank), dtype=bool) if awaited is None else awaited
    waiting = ~gone & listed
    if look.log_e >= log_threshold:
        action = Action.REJECT
    elif look.draws >= most_draws:
        action = Action.ACCEPT_AT_MAX
    elif look.draws >= least_draws and not waiting.any():
        action = Action.ACCEPT_EARLY
    else:
        action = Action.GO_ON
    names = np.array([one.name for one in bank], dtype=object)
    return Decision(
        action, look.log_e, look.draws, tuple(names[gone].tolist()), tuple(names[waiting].tolist())
    )
