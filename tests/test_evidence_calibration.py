"""Simulated runs, the fault bank, and the commands that print them."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.cli import main
from refsampler.conformance.evidence.budget import RUN_CLAUSES, SEQUENTIAL
from refsampler.conformance.evidence.calibration import BREAKS, RunResult, Simulator
from refsampler.conformance.evidence.calibration_summary import (
    BrokenLine,
    Calibration,
    LevelLine,
    calibrate,
)
from refsampler.conformance.evidence.faultbank import fault_cases
from refsampler.conformance.evidence.faultlaws import FaultCase, LawPair
from refsampler.conformance.evidence.powertable import (
    _law_case,
    _one_run,
    _siblings,
    design_line,
    geometric_mean,
    power_line,
)
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.params import SamplingParams
from refsampler.request import Request

CASES = {one.name: one for one in fault_cases()}


# ---- calibration


@pytest.fixture(scope="module")
def simulator():
    return Simulator()


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["exact", "least favourable"])
def test_a_right_sampler_is_never_rejected(simulator, kind):
    # Each run rejects with probability <= SEQUENTIAL.
    assert 40 * SEQUENTIAL < 1e-7
    for number in range(40):
        result = simulator.run(number, kind)
        assert not result.failed
        assert set(result.highest) == {one.clause for one in RUN_CLAUSES}


@pytest.mark.statistical
@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_clause_is_found_alone(simulator, broken):
    for number in range(6):
        assert simulator.run(number, "exact", broken).failed == {broken}
        assert simulator.run(number, "least favourable", broken).failed == {broken}


def test_a_run_is_reproducible(simulator):
    assert simulator.run(3) == Simulator().run(3)
    assert simulator.run(3) != simulator.run(4)


def test_summary_counts():
    told: list[int] = []
    found = calibrate(2, 14, told.append)
    assert sum(told) == 2 * 2 + 14
    assert found.holds
    assert found.runs == 4
    assert len(found.levels) == len(RUN_CLAUSES) * 2 * 3
    assert [one.clause for one in found.broken] == list(BREAKS)


def test_summary_counts_what_was_reported(monkeypatch):
    def run(_simulator, number, _kind, broken=None):
        # Of the broken runs the first of each kind finds nothing, the second accuses another clause.
        failed = {broken} - {None} if number > 0 else set()
        failed |= {"draw.tail"} if (broken, number) == ("draw.law", 1) else set()
        return RunResult({one.clause: 3.0 * number for one in RUN_CLAUSES}, frozenset(failed))

    monkeypatch.setattr(Simulator, "run", run)
    found = calibrate(3, 42)
    assert [(one.runs, one.found, one.others) for one in found.broken] == [
        (6, 4, 2 if one == "draw.law" else 0) for one in BREAKS
    ]
    # log E of 0, 3 and 6: ln 10 = 2.3, ln 33 = 3.5, ln 100 = 4.6.
    assert [one.reached for one in found.levels[:3]] == [2, 1, 1]
    assert found.rejections == 0
    assert not found.holds


def test_summary_does_not_hold_when_a_count_is_wrong():
    level = LevelLine("draw.law", "exact", 0.1, 100, 26, 26)
    broken = BrokenLine("draw.law", "", 10, 10, 0)
    assert Calibration(100, 0, (level,), (broken,)).holds
    assert not Calibration(100, 1, (level,), (broken,)).holds
    assert not Calibration(100, 0, (LevelLine("c", "exact", 0.1, 100, 27, 26),), ()).holds
    assert not Calibration(100, 0, (), (BrokenLine("c", "", 10, 9, 0),)).holds
    assert not Calibration(100, 0, (), (BrokenLine("c", "", 10, 10, 1),)).holds


# ---- fault bank


@pytest.mark.parametrize(
    ("name", "variation", "least"),
    [
        # TV and ln(1e9)/KL, found by another program on the same rows.
        ("temperature +1 %", 1.2e-2, 4.6e4),
        ("top-k keeps one less", 2.4e-3, 8.7e3),
        ("top-p drops the crossing id", 3.0e-4, 7.0e4),
        ("running sum in float16", 2.1e-3, 3.5e5),
        ("24-bit uniform", 1.3e-3, 2.5e5),
        ("noise floor 2^-24", 6.0e-3, 5.0e4),
        ("1 % from the neighbour's row", 9.9e-3, 288),
        ("last id never drawn", 5.7e-7, 3.6e7),
        ("repetition penalty divides negative logits", 2.2e-2, 2.5e3),
    ],
)
def test_typical_rows(name, variation, least):
    pair = CASES[name].typical
    assert pair.total_variation == pytest.approx(variation, rel=0.04)
    assert math.log(1e9) / pair.divergence == pytest.approx(least, rel=0.02)


def designed_pair(name):
    pair = CASES[name].designed
    assert pair is not None
    return pair


def test_designed_rows_by_hand():
    designed = designed_pair("top-p without renormalisation")
    assert designed.right == pytest.approx([0.6, 0.4])
    assert designed.faulty == pytest.approx([0.48, 0.52])
    flips = designed_pair("repetition penalty applied twice")
    assert flips.right == pytest.approx([1.0, 0.0], abs=1e-12)  # 600 against 570
    assert flips.faulty == pytest.approx([0.0, 1.0], abs=1e-10)  # 545 against 570
    coarse = designed_pair("16-bit uniform")  # 0.4 of a step each: two in five get a whole step
    assert np.unique(coarse.faulty[1:] * 2**16).tolist() == [0.0, 1.0]
    assert designed_pair("top-k keeps one more").outside == pytest.approx(1 / 3, rel=1e-2)


def test_designs_gain():
    lines = [line for case in CASES.values() if (line := design_line(case)) is not None]
    assert len(CASES) == 31
    assert len(lines) == 29
    assert geometric_mean([one.gain for one in lines]) >= 50
    k_less = next(one for one in lines if one.fault == "top-k keeps one less")
    # The row draws one of two ids; ln(64e9) / ln 2, but for the steps of 1e-3.
    assert k_less.designed == pytest.approx(math.log(64e9) / math.log(2), rel=2e-3)
    assert k_less.typical == pytest.approx(1.04e4, rel=0.01)


def test_a_fault_is_left_out_with_what_is_nearly_the_same_law():
    pair = CASES["temperature 0.8 raised to 0.85"].typical
    probs = pair.right[:2000] / pair.right[:2000].sum()
    hot = probs ** (1 / 1.01)
    pair = LawPair.of(probs, hot)
    law = _law_case(pair)
    gone = [
        one.name
        for one, weight in zip(law.alternatives, _siblings(law, pair), strict=True)
        if weight == -math.inf
    ]
    assert gone == ["the fault itself", "temperature +1 %"]
    assert sum(one.weight for one in law.alternatives) <= 1


@pytest.mark.statistical
def test_without_siblings_left_out_is_generic_however_long_it_takes():
    # A fault that only its own bet finds: signs that alternate at random over 20000 equal ids.  The
    # generic bets need far more than 35 times as long, where a weight of 1e-300 would come back.
    signs = np.random.default_rng(0).permutation(np.repeat([1.0, -1.0], 10000))
    pair = LawPair.of(np.full(20000, 1 / 20000), (1 + 0.9 * signs) / 20000)
    law = _law_case(pair)
    nothing = np.full(len(law.alternatives), -math.inf)
    least = math.log(1e9) / pair.divergence
    found = _one_run(law, nothing, pair.faulty, least, np.random.default_rng(1))
    assert found[1] == found[2] > 36 * least


@pytest.mark.statistical
def test_a_small_fault_case_is_found_when_the_theory_says():
    probs = np.array([0.5, 0.3, 0.2])
    pair = LawPair.of(probs, np.array([0.45, 0.3, 0.25]))
    line = power_line(FaultCase("small", pair, None, ""), repeats=21, seed=1)
    assert line is not None
    assert line.least == pytest.approx(math.log(1e9) / pair.divergence)
    # ln(128e9)/KL = 1.23 of it; the median of 21 runs, each of relative spread 0.3, and 4 % steps.
    assert 1.0 < line.declared < 1.45
    assert line.declared <= line.left_out <= line.generic
    assert line.declared <= line.in_run
    outside = LawPair.of(np.array([1.0, 0.0]), np.array([0.9, 0.1]))
    assert power_line(FaultCase("out", outside, None, ""), repeats=1, seed=1) is None


# ---- commands


def call(*arguments):
    return CliRunner().invoke(main, arguments)


def test_audit_writes_its_tables(tmp_path):
    result = call(
        "audit", "--calibration", "--runs", "2", "--broken-runs", "14", "--out", str(tmp_path)
    )
    assert result.exit_code == 0
    assert "0 of 4 right runs rejected" in result.output
    document = json.loads((tmp_path / "calibration.json").read_text())
    assert document["holds"] is True
    assert document["made"]["command"].startswith("refsampler audit --calibration --runs 2")
    assert document["calibration"]["runs"] == 4
    assert "| draw.law | exact | 0.1 | 2 |" in (tmp_path / "calibration.md").read_text()


def test_power_of_a_law():
    result = call("power", "--law", "zipf", "--vocab", "64", "--tv", "0.02")
    assert result.exit_code == 0
    lines = [line.split("  ") for line in result.output.splitlines()]
    words = {line[0] for line in lines}
    assert {"any law at TV >= 0.02", "temperature +1 %"} <= words
    assert "inside the tolerance" in result.output


def test_power_of_a_case(tmp_path):
    recipe = LogitsRecipe(
        50, (RowRecipe(ids=(1, 4), values=(3.0, 2.0)), RowRecipe(ids=(3,), values=(1.0,)))
    )
    hot, cold = SamplingParams(temperature=1.0, top_k=2), SamplingParams(temperature=0.0)
    case = Case(logits=recipe, requests=(Request(hot), Request(cold)))
    path = tmp_path / "case.json"
    path.write_bytes(encode_case(case))
    result = call("power", "--law", str(path))
    assert result.exit_code == 0
    assert result.output.startswith("2 cells, V = 50")
    result = call("power", "--law", str(path), "--row", "1")
    assert result.exit_code == 2
    assert "row 1 has no law" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("power",), "either --table or --law"),
        (("power", "--table", "--law", "zipf"), "either --table or --law"),
        (("power", "--law", "no-such-file"), "no-such-file"),
        (("audit", "--fault", "none"), "no fault"),
    ],
)
def test_bad_use_is_named(arguments, words):
    result = call(*arguments)
    assert result.exit_code == 2
    assert words in result.output
