"""Declared alternatives against laws worked out by hand or simulated."""

import numpy as np
import pytest

from refsampler.conformance.evidence import alternatives as alt
from refsampler.conformance.evidence.cells import RowLaw


def row(probs, ids=None, vocab=None):
    probs = np.asarray(probs, dtype=float)
    ids = np.arange(probs.size) if ids is None else np.asarray(ids)
    return RowLaw(ids, probs / probs.sum(), vocab or int(ids[-1]) + 1)


def normal(law):
    return law / law.sum()


def test_bank_is_a_sub_probability_with_unique_names():
    assert len({one.name for one in alt.BANK}) == len(alt.BANK) <= 40
    assert sum(one.weight for one in alt.BANK) <= 1


@pytest.mark.parametrize("live", [1, 2, 50, 4096])
@pytest.mark.parametrize("one", alt.BANK, ids=lambda one: one.name)
def test_every_alternative_is_a_law(one, live):
    probs = np.random.default_rng(live).dirichlet(np.full(live, 0.3)) + 1e-12
    law = one.fault(row(probs))
    assert law.shape == (live,)
    assert (law >= 0).all()
    assert 0 < law.sum() < np.inf


def test_temperature_by_hand():
    # At twice the temperature the odds 9 : 1 become 3 : 1.
    assert normal(alt.temperature(row([9, 1]), 1.0)) == pytest.approx([0.75, 0.25])


def test_mixtures_by_hand():
    assert alt.uniform_mixture(row([0.7, 0.3]), 0.1) == pytest.approx([0.68, 0.32])
    assert alt.greedy_mixture(row([0.3, 0.7]), 0.1) == pytest.approx([0.27, 0.73])


def test_bfloat16_by_hand():
    # 8 significant bits: near 0.3 the step is 2^-9; 0.3 = 153.6 steps, 0.7 = 179.2 steps of 2^-8.
    law = alt.bfloat16_probs(row([0.3, 0.7]))
    assert law.tolist() == [154 * 2.0**-9, 179 * 2.0**-8]


def test_uniform_grid_equals_inverse_cdf_on_every_grid_point():
    one = row(np.random.default_rng(1).dirichlet(np.ones(11)))
    grid = np.arange(2**10) / 2**10
    drawn = np.searchsorted(np.cumsum(one.probs), grid, side="right")
    assert alt.uniform_grid(one, 10).tolist() == np.bincount(drawn, minlength=11).tolist()


def test_narrow_sum_loses_small_addends():
    # In float16 1 + 2^-12 is 1: ids after a large one vanish.
    law = normal(alt.narrow_cumsum(row([1.0, *[2.0**-13] * 8]), np.float16))
    assert law[0] == 1.0
    assert law[1:].sum() == 0.0


def test_zero_noise_by_hand():
    law = alt.zero_noise(row([0.75, 0.25]), 3)  # one noise in 8 is zero for each of two ids
    assert law == pytest.approx([0.75 * 0.75 + 0.125, 0.25 * 0.75 + 0.125])


def test_noise_floor_against_the_race_itself():
    # Id i is drawn iff its noise / p_i is least; noise below the floor cannot occur.
    probs, bits = np.array([0.9, 0.08, 0.02]), 4
    rng = np.random.default_rng(0)
    noise = rng.exponential(size=(400_000, 3)) + 2.0**-bits
    drawn = np.bincount((noise / probs).argmin(1), minlength=3) / 400_000
    law = normal(alt.noise_floor(row(probs), bits))
    # 2^-4 / p moves the race's start; to first order in the small ids the law is exact.
    assert law[2] / law[0] == pytest.approx(drawn[2] / drawn[0], rel=0.1)
    assert drawn[2] < 0.02 * 0.1


def test_tilts_by_hand():
    assert alt.id_tilt(row([0.5, 0.5], ids=[0, 9], vocab=10), 0.02) == pytest.approx([0.51, 0.49])
    assert alt.parity_tilt(row([0.5, 0.5], ids=[3, 4]), 0.02) == pytest.approx([0.49, 0.51])
    # Ranks 0, 1, 2 lie at log 1, log 2, log 3 on a scale of log 3.
    tilted = alt.log_rank_tilt(row([0.2, 0.5, 0.3]), 0.1)
    middle = 1 + 0.1 * (1 - 2 * np.log(2) / np.log(3))
    assert tilted == pytest.approx([0.2 * 0.9, 0.5 * 1.1, 0.3 * middle])


def test_dropped_and_favoured_by_hand():
    one = row([0.5, 0.2, 0.2, 0.1])
    assert alt.dropped(one, "last rank") == pytest.approx([0.5, 0.2, 0.2, 0.0])
    assert alt.dropped(one, "first id") == pytest.approx([0.0, 0.2, 0.2, 0.1])
    assert alt.dropped(row([1.0]), "first id").tolist() == [1.0]
    assert alt.favoured(one, "last id", 2.0) == pytest.approx([0.5, 0.2, 0.2, 0.2])
    many = alt.dropped(row(np.arange(300) % 7 + 1), "last rank")
    assert np.flatnonzero(many == 0).tolist() == [294]  # the last of 43 ids of least probability
    tied = row([0.4, 0.2, 0.2, 0.2])
    assert alt.dropped(tied, "last rank") == pytest.approx([0.4, 0.2, 0.2, 0.0])
