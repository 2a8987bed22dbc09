"""The cells on which a row's law is tested: single ids, tied ids as one, rare ids as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refsampler.conformance.evidence.arrays import BoolArray, FloatArray, IntArray, frozen

__all__ = ["OUTSIDE", "SKIPPED", "Cells", "RowLaw", "Tally", "masses", "sums"]

SKIPPED = -1
OUTSIDE = -2
_SMALLEST = 1e-300  # keeps likelihood ratios finite; a law that far down is never drawn


@dataclass(frozen=True, slots=True, eq=False)
class RowLaw:
    """A law on the ids that a row may give, in id order.

    Attributes:
        ids: [live] ascending.
        probs: [live] positive, summing to 1.
        vocab: number of ids in all.

    """

    ids: IntArray
    probs: FloatArray
    vocab: int


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """One batch of draws sorted into cells.

    Attributes:
        counts: [cells].
        skipped: draws in the hull about which the law says nothing.
        outside: draws that no right backend gives.

    """

    counts: IntArray
    skipped: int
    outside: int


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Cells of one row, conditional on the core and the tie lump.

    Attributes:
        cell_of_id: [vocab] index of the cell, or SKIPPED, or OUTSIDE.
        probs: [cells] exact law, positive, summing to 1.
        ids: [cells] the id of a single-id cell, -1 for a lump.
        labels: words for the lumps, in the order of their cells (they come last).
        live: the law on single ids, from which alternatives are made.

    """

    cell_of_id: IntArray
    probs: FloatArray
    ids: IntArray
    labels: tuple[str, ...]
    live: RowLaw

    @classmethod
    def build(
        cls,
        logprobs: FloatArray,
        core: BoolArray,
        hull: BoolArray,
        lumped: BoolArray,
        lump_logprob: float,
        floor: float,
    ) -> Cells:
        """Sort ids into cells.

        Args:
            logprobs: [vocab] log probabilities; read on core ids that are not lumped, and up to a
                constant shared with lump_logprob.
            core: [vocab] ids that every right backend keeps.
            hull: [vocab] ids that a right backend may keep.
            lumped: [vocab] tied ids of which only the summed mass is determined.
            lump_logprob: log of that mass; ignored without lumped ids.
            floor: ids of smaller probability are one cell.

        Raises:
            ValueError: shapes differ, the core leaves the hull, or nothing has positive mass.

        """
        _check(logprobs, core, hull, lumped, lump_logprob, floor)
        vocab = logprobs.size
        single = core & ~lumped
        tested = single | lumped
        log_weight = np.full(vocab, -np.inf)
        log_weight[single] = logprobs[single]
        if lumped.any():  # spread evenly: only the sum is ever tested
            log_weight[lumped] = lump_logprob - np.log(lumped.sum())
        weight = np.exp(log_weight - log_weight.max())
        probs = weight / weight.sum()

        rare = single & ((probs < floor) | (probs == 0))
        common = np.flatnonzero(single & ~rare)
        cell_of_id = np.where(hull, SKIPPED, OUTSIDE).astype(np.int64)
        cell_of_id[common] = np.arange(common.size)
        cell_probs: list[FloatArray] = [probs[common]]
        labels: list[str] = []
        for mask, label in ((lumped, "tied ids"), (rare, f"ids of probability < {floor:.3g}")):
            if mask.any():
                cell_of_id[mask] = common.size + len(labels)
                cell_probs.append(probs[mask].sum(keepdims=True))
                labels.append(label)
        exact = np.maximum(np.concatenate(cell_probs), _SMALLEST)
        live = np.flatnonzero(tested)
        return cls(
            cell_of_id=frozen(cell_of_id),
            probs=frozen(exact / exact.sum()),
            ids=frozen(np.concatenate([common, np.full(len(labels), -1)])),
            labels=tuple(labels),
            live=RowLaw(frozen(live), frozen(np.maximum(probs[live], _SMALLEST)), vocab),
        )

    def fold(self, law: FloatArray) -> FloatArray:
        """Return the law [cells] of a law [live] on single ids."""
        mass = masses(self.cell_of_id[self.live.ids], law, self.probs.size)
        folded: FloatArray = mass / mass.sum()
        return folded

    def tally(self, counts: IntArray) -> Tally:
        """Sort counts [vocab] of draws into cells.

        Raises:
            ValueError: the counts have another length or are negative.

        """
        if counts.shape != self.cell_of_id.shape or (counts < 0).any():
            msg = (
                f"counts of shape {counts.shape} are refused: allowed are non-negative counts of "
                f"shape {self.cell_of_id.shape}"
            )
            raise ValueError(msg)
        seen = np.flatnonzero(counts)
        cell, times = self.cell_of_id[seen], counts[seen]
        inside = cell >= 0
        return Tally(
            counts=sums(cell[inside], times[inside], self.probs.size),
            skipped=int(times[cell == SKIPPED].sum()),
            outside=int(times[cell == OUTSIDE].sum()),
        )

    def describe(self, cell: int) -> str:
        """Return the cell in words."""
        single = self.probs.size - len(self.labels)
        return f"id {self.ids[cell]}" if cell < single else self.labels[cell - single]


def masses(group: IntArray, weight: FloatArray, groups: int) -> FloatArray:
    """Return the summed weight [groups]."""
    return np.asarray(np.bincount(group, weight, groups), dtype=np.float64)


def sums(group: IntArray, counts: IntArray, groups: int) -> IntArray:
    """Return the summed counts [groups], exact below 2^53."""
    return np.bincount(group, counts, groups).astype(np.int64)


def _check(
    logprobs: FloatArray,
    core: BoolArray,
    hull: BoolArray,
    lumped: BoolArray,
    lump_logprob: float,
    floor: float,
) -> None:
    for name, mask in (("core", core), ("hull", hull), ("lumped", lumped)):
        if mask.shape != logprobs.shape:
            msg = f"{name} of shape {mask.shape} is refused: logprobs have shape {logprobs.shape}"
            raise ValueError(msg)
    if ((core | lumped) & ~hull).any():
        raise ValueError("core and lumped are refused: allowed are ids of the hull")
    if not 0 <= floor < 1:
        raise ValueError(f"floor = {floor} is refused: allowed is 0 <= floor < 1")
    if lumped.any() and not np.isfinite(lump_logprob):
        raise ValueError(f"lump_logprob = {lump_logprob} is refused: allowed is a finite number")
    single = logprobs[core & ~lumped]
    if np.isnan(single).any() or (single == np.inf).any():
        raise ValueError("logprobs are refused: allowed are finite numbers and -inf on the core")
    if not lumped.any() and not np.isfinite(single).any():
        raise ValueError("logprobs are refused: at least one core id must have positive mass")
