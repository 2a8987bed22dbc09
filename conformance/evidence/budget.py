"""The promise of a run, split before the first draw: at most 1e-9 that an obeyed clause fails."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = [
    "FIXED_DRAWS",
    "NEAR_CERTAIN",
    "RUN_CLAUSES",
    "SEQUENTIAL",
    "TOTAL",
    "Budget",
    "BudgetExceededError",
    "Charge",
    "ClauseShare",
    "Ledger",
]

TOTAL = 1e-9
NEAR_CERTAIN = 1e-10
FIXED_DRAWS = 1.5e-10
SEQUENTIAL = 7.5e-10
_ROUNDING = 1 + 1e-12  # a sum of floats may exceed its limit by rounding alone


class BudgetExceededError(ValueError):
    """More false-alarm probability was asked for than the run promises."""


@dataclass(frozen=True, slots=True)
class ClauseShare:
    """A law or independence clause and its share of SEQUENTIAL, relative to the others'."""

    clause: str
    share: float = 1.0


RUN_CLAUSES = (
    ClauseShare("draw.law"),
    ClauseShare("draw.tail"),
    ClauseShare("independence.rows"),
    ClauseShare("independence.calls"),
    ClauseShare("independence.streams"),
    ClauseShare("spec.law", 0.125),
    ClauseShare("spec.draft-law", 0.125),
)
"""The clauses that a whole run judges by e-processes.

Equal shares, but for those about drafts, of which few backends have any: an eighth costs them two
nats more and the others a twentieth of a nat.
"""


@dataclass(frozen=True, slots=True)
class Budget:
    """The split over the clauses that are judged by e-processes.

    Attributes:
        clauses: each once; shares are positive and need not sum to 1.
        total: what they may spend together.

    """

    clauses: tuple[ClauseShare, ...]
    total: float = SEQUENTIAL

    def __post_init__(self) -> None:
        """Refuse a split that would promise more than there is."""
        if not 0 < self.total <= SEQUENTIAL:
            msg = f"total = {self.total} is refused: allowed is 0 < total <= {SEQUENTIAL}"
            raise ValueError(msg)
        names = [one.clause for one in self.clauses]
        if len(set(names)) != len(names):
            raise ValueError(f"clauses = {names} are refused: allowed is each clause once")
        for one in self.clauses:
            if not (math.isfinite(one.share) and one.share > 0):
                msg = f"share of {one.clause} = {one.share} is refused: allowed are numbers > 0"
                raise ValueError(msg)

    def alpha(self, clause: str) -> float:
        """Return alpha_c, the clause's largest probability of a false FAIL.

        Raises:
            KeyError: the clause is not in the plan.

        """
        shares = {one.clause: one.share for one in self.clauses}
        return self.total * shares[clause] / math.fsum(shares.values())

    def log_threshold(self, clause: str) -> float:
        """Return ln(1/alpha_c), where the clause's FAIL latches."""
        return -math.log(self.alpha(clause))


@dataclass(frozen=True, slots=True)
class Charge:
    """What one check may fail a right sampler with."""

    check: str
    false_alarm: float


@dataclass(slots=True)
class Ledger:
    """A part of the promise that checks are charged to while the run is planned.

    Attributes:
        limit: NEAR_CERTAIN or FIXED_DRAWS.
        charges: so far.
        sealed: True from the first draw on; nothing can be charged after looking.

    """

    limit: float
    charges: list[Charge] = field(default_factory=list)
    sealed: bool = False

    @property
    def spent(self) -> float:
        """Return the summed false-alarm probability."""
        return math.fsum(one.false_alarm for one in self.charges)

    @property
    def left(self) -> float:
        """Return what can still be charged."""
        return max(self.limit - self.spent, 0.0)

    def charge(self, check: str, false_alarm: float) -> None:
        """Charge one check, before the first draw.

        Raises:
            BudgetExceededError: the limit would be passed, or the ledger is sealed.
            ValueError: the probability is no number >= 0.

        """
        if not (math.isfinite(false_alarm) and false_alarm >= 0):
            msg = f"false_alarm of {check} = {false_alarm} is refused: allowed are numbers >= 0"
            raise ValueError(msg)
        if self.sealed:
            msg = f"{check} is refused: the ledger was sealed by the first draw"
            raise BudgetExceededError(msg)
        if self.spent + false_alarm > self.limit * _ROUNDING:
            msg = (
                f"{check} asks for {false_alarm:.3g}, but {self.spent:.3g} of {self.limit:.3g} "
                "are spent"
            )
            raise BudgetExceededError(msg)
        self.charges.append(Charge(check, false_alarm))

    def seal(self) -> None:
        """Close the ledger: the first draw is about to be made."""
        self.sealed = True
