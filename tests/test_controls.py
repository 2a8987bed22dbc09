"""Controls under the suite: what a right and a wrong sampler give, and the table of their runs."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from refsampler.conformance.audit import controls
from refsampler.conformance.audit.controls import (
    BACKENDS,
    BY_TURNS,
    Control,
    ControlRun,
    ask_controls,
    controls_of,
)
from refsampler.conformance.audit.plans import Planner
from refsampler.conformance.cli import main
from refsampler.conformance.commands import controls as command
from refsampler.conformance.faults.controls import CONTROLS
from refsampler.conformance.faults.registry import fault
from refsampler.conformance.faults.rowwise import RowwiseKernel

SEED = 4711


class _Warm(RowwiseKernel):
    """Five per cent hotter than asked."""

    def scaled(self, x, rows, greedy):
        return super().scaled(x, replace(rows, temperature=rows.temperature * 1.05), greedy)


def test_the_first_runs_draw_everything_and_later_ones_ask_dear_checks_by_turns(monkeypatch):
    monkeypatch.setattr(controls, "find_spec", lambda package: package != "transformers" or None)
    for number in range(3):
        assert all(one.drawn and not one.left_out for one in controls_of(number))
        assert [one.name for one in controls_of(number)] == [*CONTROLS, "native", "cpu"]
    later = [controls_of(number) for number in range(3, 3 + len(CONTROLS))]
    assert all([one.name for one in run] == [*CONTROLS] for run in later)
    assert not any(one.drawn for run in later for one in run)
    asked = [one.name for run in later for one in run if not one.left_out]
    assert sorted(asked) == sorted(CONTROLS)
    assert {one.left_out for run in later for one in run} == {(), BY_TURNS}


def test_controls_are_chosen_by_name():
    assert [one.name for one in controls_of(0, "top-*")] == [
        "top-k ties: exactly k",
        "top-p ties: all",
    ]
    assert [one.name for one in controls_of(0, BACKENDS[0])] == [BACKENDS[0]]
    assert controls_of(3, BACKENDS[0]) == ()


def test_a_false_alarm_is_reported(monkeypatch):
    """A fault that poses as a control, under the checks of its clause alone to save time."""
    made = {"Gumbel": CONTROLS["Gumbel"], "wrong": fault("B114").make}
    monkeypatch.setattr(Planner, "whole", lambda self, *about: self.named(*about, ("top-p.keep",)))
    told: list[ControlRun] = []
    asked = tuple(Control(name, make, drawn=True) for name, make in made.items())
    runs = ask_controls(asked, SEED, "quick", tell=told.append)
    assert {one.control: one.failed for one in runs} == {"Gumbel": (), "wrong": ("top-p.keep",)}
    assert told == [*runs]
    assert all(one.cases > 0 and not one.errors and not one.simulated for one in runs)


def test_a_law_that_is_slightly_wrong_is_reported_where_draws_are_simulated(monkeypatch):
    """The simulated ids follow the control's own law, not the one that the suite expects."""
    made = {"right": RowwiseKernel, "warm": _Warm}
    monkeypatch.setattr(Planner, "whole", lambda self, *about: self.named(*about, ("draw.law",)))
    asked = tuple(Control(name, make, drawn=False) for name, make in made.items())
    right, warm = ask_controls(asked, SEED, "quick")
    assert right.failed == ()
    assert warm.failed == ("draw.law",)
    assert 0 < warm.simulated <= right.simulated <= right.draws


def test_checks_that_are_left_out_are_not_asked(monkeypatch):
    monkeypatch.setattr(Planner, "whole", lambda self, *about: self.named(*about, ("top-p.keep",)))
    make = CONTROLS["Gumbel"]
    whole = Control("Gumbel", make, drawn=True)
    (first,) = ask_controls((whole,), SEED, "quick")
    (second,) = ask_controls((replace(whole, left_out=("top-p-rows",)),), SEED, "quick")
    assert second.left_out == ("top-p-rows",)
    assert second.cases < first.cases


def _run(name, seed=SEED, **changed):
    about: dict[str, Any] = {
        "drawn": True,
        "left_out": (),
        "failed": (),
        "errors": (),
        "cases": 376,
        "draws": 1000,
        "simulated": 0,
        "seconds": 1.0,
        "revision": "abc",
    }
    return ControlRun(control=name, run_seed=seed, **{**about, **changed})


@pytest.mark.parametrize(("failed", "status"), [((), 0), (("top-k.keep",), 1)])
def test_the_table_counts_every_run(tmp_path, failed, status):
    """All runs are known, so that none is made; the last line was cut off."""
    names = [one.name for one in controls_of(0)]
    runs = [_run(name, failed=failed if name == "Gumbel" else ()) for name in names]
    log = tmp_path / "controls-quick.jsonl"
    log.write_bytes(b"\n".join([*map(msgspec.json.encode, runs), b'{"control":"Gu']))
    asked = ["audit", "--controls", "--runs", "1", "--seed", f"{SEED}", "--out", f"{tmp_path}"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == status, result.output
    head = f"{len(failed)} false alarms in {len(names)} of {len(names)} runs on right samplers."
    assert head in result.output
    page = (tmp_path / "controls-quick.md").read_text()
    assert head in page
    assert ("top-k.keep (seed 4711)" in page) == bool(failed)
    # nobody of n failed with probability 1/20 at the rate that is printed
    bound = 1 - 0.05 ** (1 / len(names))
    assert (f"fewer than {bound:.2%} of all such runs" in page) == (not failed)


class _OneThread(ThreadPoolExecutor):
    """A pool in this process, so that what the test replaces is replaced there."""

    def __init__(self, *_workers, **_kinds):
        super().__init__(1)


def test_a_run_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    """Stopped after two controls of the first seed; what is known is not asked again."""
    asked: list[tuple[str, int]] = []
    stop_after = [2]

    def fake(left, seed, _profile, *, bench, tell):
        assert bench is not None
        for control in left:
            if len(asked) == stop_after[0]:
                raise RuntimeError("stopped")
            asked.append((control.name, seed))
            drawn = {"drawn": control.drawn, "left_out": control.left_out}
            tell(_run(control.name, seed, **drawn))

    monkeypatch.setattr(command, "ask_controls", fake)
    monkeypatch.setattr(command, "ProcessPoolExecutor", _OneThread)
    words = ["audit", "--controls", "--control", "[!nct]*", "--runs", "4", "--workers", "1"]
    words += ["--seed", "7", "--out", f"{tmp_path}"]
    wanted = [(one.name, 7 + n) for n in range(4) for one in controls_of(n, "[!nct]*")]
    stopped = CliRunner().invoke(main, words)
    assert stopped.exit_code == 1
    assert f"0 false alarms in 2 of {len(wanted)} runs" in stopped.output
    assert asked == wanted[:2]
    stop_after[0] = -1
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert asked == wanted
    assert f"0 false alarms in {len(wanted)} of {len(wanted)} runs" in result.output
    table = msgspec.json.decode((tmp_path / "controls-quick.json").read_bytes())
    assert [(one["control"], one["run_seed"]) for one in table["runs"]] == wanted


def test_a_simulated_run_does_not_stand_for_a_drawn_one():
    (drawn,) = controls_of(0, "Gumbel")
    (later,) = controls_of(3, "Gumbel")
    simulated = _run("Gumbel", drawn=False, left_out=BY_TURNS)
    assert not command._is_known(drawn, SEED, [simulated])
    assert command._is_known(later, SEED, [simulated])
    assert command._is_known(later, SEED, [_run("Gumbel")])
    assert not command._is_known(later, SEED + 1, [simulated])
