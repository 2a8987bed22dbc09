"""Rows drawn once each: every bet is an e-value over the ball, and grows as designed."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from refsampler.conformance.evidence.alternatives import BANK
from refsampler.conformance.evidence.features import (
    FEATURE_BETS,
    WRONG_RATES,
    Entries,
    feature_log_e,
    wrong_log_e,
)
from refsampler.conformance.evidence.hetero import HeteroBatch, HeteroProcess, neighbours
from refsampler.conformance.evidence.pool import ClausePool, equal_weights
from refsampler.conformance.evidence.strata import row_masks
from refsampler.conformance.evidence.tolerance import worst_case_mean

LOG_THRESHOLD = math.log(1e9)


def zipf_rows(rows, vocab, seed=0):
    rng = np.random.default_rng(seed)
    slope = rng.uniform(0.9, 1.6, (rows, 1))
    logits = -slope * np.log(np.arange(vocab) + 1.5) + 0.4 * rng.standard_normal((rows, vocab))
    logits = rng.permuted(logits, axis=1) / rng.uniform(0.5, 1.5, (rows, 1))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def every_draw(logprobs, core):
    """One row [vocab], drawn once at each core id."""
    ids = np.flatnonzero(core)
    count = ids.size
    return ids, Entries.build(np.tile(logprobs, (count, 1)), np.tile(core, (count, 1)), ids)


def draw(rng, laws):
    ends = np.cumsum(laws, axis=1)
    return (rng.random((laws.shape[0], 1)) * ends[:, -1:] > ends).sum(axis=1)


# ---- every bet


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("core_size", [1, 2, 40])
def test_no_law_of_the_ball_gains(delta, core_size):
    logprobs = zipf_rows(2, 40, seed=3)
    core = np.zeros(40, dtype=bool)
    core[np.argsort(-logprobs[0])[:core_size]] = True
    ids, entries = every_draw(logprobs[0], core)
    probs = np.exp(logprobs[0, ids])
    probs /= probs.sum()
    deltas = np.full(ids.size, delta)
    wrong = np.tile(np.exp(logprobs[1]), (ids.size, 1))
    for log_e in (feature_log_e(entries, deltas), wrong_log_e(entries, wrong, deltas)):
        for bet in np.exp(log_e):
            assert worst_case_mean(probs, bet, delta) <= 1 + 1e-12
            assert worst_case_mean(probs, bet, delta) >= 1 - 1e-12 - 2 * delta * bet.max()
    assert feature_log_e(entries, deltas).shape[0] == len(FEATURE_BETS)


def test_temperature_bet_grows_almost_as_fast_as_any():
    for seed in range(4):
        logprobs = zipf_rows(1, 400, seed)[0]
        _, entries = every_draw(logprobs, np.ones(400, dtype=bool))
        log_e = feature_log_e(entries, np.zeros(400))
        p = np.exp(logprobs)
        for name, change in (("temperature +1 %", 0.01), ("temperature -5 %", -0.05)):
            q = np.exp(logprobs / (1 + change))
            q /= q.sum()
            best = float(q @ np.log(q / p))
            assert 0.97 * best <= q @ log_e[FEATURE_BETS.index(name)] <= best


def test_events_by_hand():
    p = np.array([0.5, 0.1, 0.3, 0.1])
    _, entries = every_draw(np.log(p), np.ones(4, dtype=bool))
    log_e = feature_log_e(entries, np.full(4, 0.01))

    def e(name):
        return np.exp(log_e[FEATURE_BETS.index(name)])

    # The most probable id twice as often: 2 and 1 over 1.5 + 0.01.
    assert e("most probable id x2") == pytest.approx(np.array([2, 1, 1, 1]) / 1.51)
    assert e("odd ids x0.8") == pytest.approx(np.array([1, 0.8, 1, 0.8]) / 0.962)
    assert e("last kept id x1.25") == pytest.approx(np.array([1, 1, 1, 1.25]) / 1.0275)
    # Of the two rarest ids the lower one.
    assert e("least probable kept id x2") == pytest.approx(np.array([1, 2, 1, 1]) / 1.11)
    greedy = np.array([0.99 + 0.01 / 0.5, 0.99, 0.99, 0.99])
    assert e("greedy mixture +1 %") == pytest.approx(greedy / (1 + 0.01 * 0.02))


def test_wrong_law_by_hand():
    p, q = np.array([0.5, 0.5]), np.array([0.8, 0.2])
    _, entries = every_draw(np.log(p), np.ones(2, dtype=bool))
    log_e = wrong_log_e(entries, np.tile(10 * q, (2, 1)), np.zeros(2))
    assert np.exp(log_e[WRONG_RATES.index(1.0)]) == pytest.approx([1.6, 0.4])
    assert np.exp(log_e[WRONG_RATES.index(0.1)]) == pytest.approx([1.06, 0.94])
    nothing = wrong_log_e(entries, np.zeros((2, 2)), np.zeros(2))
    assert nothing == pytest.approx(np.zeros((4, 2)))


# ---- the process


def batch_of(laws, draws, delta=1e-4, wrong=()):
    mask = np.ones(laws.shape, dtype=bool)
    return HeteroBatch(np.log(laws), mask, mask, draws, delta, wrong)


def test_core_and_hull_per_row():
    laws = np.exp(zipf_rows(4, 10))
    core = np.zeros((4, 10), dtype=bool)
    core[:, :3] = True
    hull = core.copy()
    hull[:, 3] = True
    process = HeteroProcess("h")
    process.update(HeteroBatch(np.log(laws), core, hull, np.array([2, 3, 9, -1]), 1e-4))
    assert (process.draws, process.skipped, process.outside) == (1, 1, 2)
    # Only the first row speaks, with its law given the core.
    given = np.where(core, laws, 0)[:1]
    alone = HeteroProcess("h")
    alone.update(HeteroBatch(np.log(given + 1e-99), core[:1], core[:1], np.array([2]), 1e-4))
    first = [at for at, bet in enumerate(process.bets) if bet.name == "temperature +25 %"]
    assert process.log_components[first] == pytest.approx(alone.log_components[first], abs=1e-12)
    assert process.log_components[first] != pytest.approx(0.0, abs=1e-6)


@pytest.mark.statistical
def test_level_on_right_rows():
    rng = np.random.default_rng(1)
    laws = np.exp(zipf_rows(32, 24))
    delta, runs = 0.01, 150
    # As far as the tolerance allows towards the most probable id.
    worst = (1 - delta) * laws + delta * (laws == laws.max(axis=1, keepdims=True))
    highest = np.zeros(runs)
    for run in range(runs):
        process = HeteroProcess("h", ("neighbour",))
        for _ in range(4):
            process.update(batch_of(laws, draw(rng, worst), delta, (neighbours(laws),)))
            highest[run] = max(highest[run], process.log_e)
    for level in (0.1, 0.03):
        assert (highest >= -math.log(level)).sum() <= binom.isf(1e-9, runs, level)


@pytest.mark.statistical
def test_a_neighbours_law_and_a_lost_last_id_are_named():
    rng = np.random.default_rng(2)
    laws = np.exp(zipf_rows(256, 64, 5))
    stale = np.where(rng.random((256, 1)) < 0.1, neighbours(laws), laws)
    process = HeteroProcess("h", ("neighbour's law",))
    for _ in range(6):
        process.update(batch_of(laws, draw(rng, stale), wrong=(neighbours(laws),)))
    assert process.log_e > LOG_THRESHOLD
    assert process.evidence().best.name == "neighbour's law in 10 %"
    top = laws == laws.max(axis=1, keepdims=True)
    process = HeteroProcess("h")
    for _ in range(4):
        process.update(batch_of(laws, draw(rng, 0.75 * laws + 0.25 * top)))
    assert process.log_e > LOG_THRESHOLD
    assert process.evidence().best.name.startswith("most probable id x")


@pytest.mark.statistical
def test_a_fault_of_odd_rows_alone_is_named():
    rng = np.random.default_rng(3)
    laws = np.exp(zipf_rows(256, 64, 6))
    hot = laws ** (1 / 1.25)
    hot /= hot.sum(axis=1, keepdims=True)
    hot[::2] = laws[::2]
    process = HeteroProcess("h")
    for _ in range(30):
        process.update(batch_of(laws, draw(rng, hot)))
    assert process.log_e > LOG_THRESHOLD
    assert process.evidence().best.name == "temperature +25 %, odd rows"


def test_pools_and_weights():
    processes = [HeteroProcess(name, ("x",)) for name in ("a", "b")]
    assert sum(one.weight for one in processes[0].bets) == pytest.approx(1.0)
    assert len({one.name for one in processes[0].bets}) == len(processes[0].bets)
    pool = ClausePool(equal_weights(["a", "b"]), processes[0].bets, LOG_THRESHOLD)
    for one in processes:
        assert one.log_e == pytest.approx(0.0, abs=1e-12)
        pool.update(one.evidence())
    assert pool.log_e == pytest.approx(0.0, abs=1e-12)


def test_takes_part_in_a_pool_with_the_bank():
    rng = np.random.default_rng(5)
    laws = np.exp(zipf_rows(64, 32))
    process = HeteroProcess("h")
    process.update(batch_of(laws, draw(rng, laws)))
    evidence = process.evidence(BANK)
    shared = dict(zip((one.name for one in BANK), evidence.log_components, strict=True))
    mine = dict(zip((one.name for one in process.bets), process.log_components, strict=True))
    for name in ("temperature +1 %", "uniform mixture +1 %", "greedy mixture +1 %",
                 "low-id tilt -5 %", "log-rank tilt +5 %", "noise floor 2^-24"):  # fmt: skip
        assert shared[name] == mine[name] != 0.0
    assert shared["16-bit uniform"] == 0.0
    assert evidence.log_e == process.log_e


@pytest.mark.parametrize(
    ("change", "words"),
    [({"draws": np.zeros(3, dtype=int)}, "draws"), ({"delta": -1.0}, "delta"),
     ({"wrong": (np.ones((2, 4)),)}, "declared"), ({"hull": np.ones((1, 4), dtype=bool)}, "hull")],
)  # fmt: skip
def test_bad_batch_is_named(change, words):
    mask = np.ones((2, 4), dtype=bool)
    given = {"logprobs": np.zeros((2, 4)), "core": mask, "hull": mask, "delta": 0.0,
             "draws": np.zeros(2, dtype=int), **change}  # fmt: skip
    with pytest.raises(ValueError, match=words):
        HeteroProcess("h").update(HeteroBatch(**given))


# ---- strata


def test_masks_by_hand():
    masks = row_masks(300)
    assert [np.flatnonzero(one)[0] for one in masks] == [0, 299, 1, 256, 256]
    assert [int(one.sum()) for one in masks] == [1, 1, 150, 44, 44]
    assert [int(one.sum()) for one in row_masks(128)] == [1, 1, 64, 0, 0]
