"""Subjects that work out equal rows once: the law that they draw from is that of each row."""

import numpy as np
import pytest
import torch

from refsampler.backends.protocol import Rows
from refsampler.conformance.checks import sums
from refsampler.conformance.faults.precision import _NoiseWithFloor
from refsampler.conformance.faults.registry import fault
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.faults.rowwise import RowwiseKernel


def rows_of(count: int, *, temperature: float = 1.0, **filters: float) -> Rows:
    whole = torch.zeros(count, dtype=torch.int64)
    given = {name: torch.full((count,), value) for name, value in filters.items()}
    return Rows(
        top_k=given["top_k"].int() if "top_k" in given else None,
        top_p=given.get("top_p"),
        temperature=torch.full((count,), temperature),
        min_p=given.get("min_p"),
        seed=whole,
        step=whole,
        seeded=whole.bool(),
        generators={},
    )


class _Given(RowwiseKernel):
    """Uniforms of one's choice."""

    def __init__(self, uniform):
        self.uniform = uniform

    def fresh(self, count):
        return self.uniform[:count]


@pytest.mark.parametrize("filters", [{}, {"top_k": 3.0}, {"top_p": 0.6}, {"min_p": 0.2}])
def test_equal_rows_and_unequal_ones_give_the_ids_of_the_sorted_masses(filters):
    """Masses 1/2, 1/4, 1/8, 1/8 in the order 2, 0, 3, 1: by hand, as each filter leaves them."""
    logits = torch.log(torch.tensor([0.25, 0.125, 0.5, 0.125]))
    uniform = torch.tensor([0.0, 0.2, 0.3, 0.4, 0.6, 0.9, 0.99], dtype=torch.float64)
    # running sums of what is left, in the order of the ids
    left = {
        (): [0.25, 0.375, 0.875, 1.0],
        # the third and the fourth tie, so that both stay
        ("top_k",): [0.25, 0.375, 0.875, 1.0],
        ("top_p",): [1 / 3, 1 / 3, 1.0, 1.0],
        ("min_p",): [0.25, 0.375, 0.875, 1.0],
    }[tuple(filters)]
    expected = [next(i for i, edge in enumerate(left) if u < edge) for u in uniform.tolist()]
    alike = _Given(uniform).draw(logits.expand(7, -1).contiguous(), rows_of(7, **filters))
    assert alike.tolist() == expected
    # another row at the end, and the ids of the others stay
    other = torch.cat([logits.expand(6, -1), logits.flip(0)[None]])
    assert _Given(uniform).draw(other, rows_of(7, **filters)).tolist()[:6] == expected[:6]


def test_greedy_rows_that_are_alike_give_the_argmax():
    logits = torch.tensor([[0.0, 3.0, 1.0]]).expand(5, -1).contiguous()
    assert RowwiseKernel().draw(logits, rows_of(5, temperature=0.0)).tolist() == [1] * 5


def test_noise_with_a_floor_has_the_law_of_a_race_with_a_floor(monkeypatch):
    """The closed form against two million races, with a floor so high that it shows.

    Frequencies are within 6 standard errors of the law but for 2e-9 each, under a fixed seed.
    """
    probs = torch.tensor([[0.4, 0.15, 0.4, 0.05, 0.0]], dtype=torch.float64)
    count, floor = 2_000_000, 0.5
    monkeypatch.setattr(_NoiseWithFloor, "end", floor)
    law = _NoiseWithFloor().law(probs)[0].numpy()
    noise = np.random.default_rng(5).exponential(size=(count, 5)).clip(min=floor)
    ids = np.argmax(probs.numpy() / noise, axis=1)
    seen = np.bincount(ids, minlength=5) / count
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    assert law[4] == 0
    assert (np.abs(seen - law) <= 6 * np.sqrt(law * (1 - law) / count)).all()
    # ids of equal mass differ: the lower one wins where both have the least noise
    assert law[0] > 1.2 * law[2]


@pytest.mark.clause("draw.support")
def test_sums_that_step_back_leak_to_dead_ids_of_uneven_rows_and_right_ones_do_not():
    """Edges of dead ids above the sum before: 4e-9 of a draw for each logit, as the check states."""
    case = sums._uneven(RightKernel.capabilities, 0)[0]
    x = case.logits.build()
    dead = torch.isneginf(x)[0]
    make = fault("B148").make
    assert make is not None
    scan = make()
    assert isinstance(scan, RowwiseKernel)

    def leak(kernel: RowwiseKernel) -> float:
        edges = kernel.edges(x)[0].double()
        mass = torch.diff(edges, prepend=torch.zeros(1, dtype=torch.float64))
        return float(mass[dead].sum() / edges[-1])

    assert leak(RowwiseKernel()) == 0.0
    assert 1e-9 < leak(scan) / len(dead) < 1e-8
