"""Controls under the suite: what a right and a wrong sampler give, and the table of their runs."""

import msgspec
import pytest
from click.testing import CliRunner

from refsampler.conformance.audit import controls
from refsampler.conformance.audit.controls import BACKENDS, ControlRun, ask_controls, controls_of
from refsampler.conformance.audit.plans import Planner
from refsampler.conformance.cli import main
from refsampler.conformance.faults.controls import CONTROLS
from refsampler.conformance.faults.registry import fault

SEED = 4711


def test_controls_of_one_law_are_drawn_once_and_backends_in_three_runs():
    drawn = {one.name for one in controls_of(0) if one.drawn}
    assert drawn == {
        "inverse CDF in float64",
        "top-k ties: exactly k",
        "top-p ties: all",
        *BACKENDS,
    }
    assert {one.name for one in controls_of(2)} == {*CONTROLS, *BACKENDS}
    assert {one.name for one in controls_of(3)} == {*CONTROLS}


def test_a_false_alarm_is_reported_and_a_known_control_is_not_asked_again(monkeypatch):
    """A fault that poses as a control, under the checks of its clause alone to save time."""
    samplers = {"Gumbel": CONTROLS["Gumbel"], "wrong": fault("B114").make, "known": None}
    monkeypatch.setattr(controls, "_BACKEND_RUNS", 0)
    monkeypatch.setattr(
        controls, "_in_process", lambda _makers: [_control(*one) for one in samplers.items()]
    )
    monkeypatch.setattr(Planner, "exact", lambda self, *about: self.named(*about, ("top-p.keep",)))
    told: list[ControlRun] = []
    runs = ask_controls(0, SEED, "quick", skip=frozenset({"known"}), tell=told.append)
    assert {one.control: one.failed for one in runs} == {"Gumbel": (), "wrong": ("top-p.keep",)}
    assert told == [*runs]
    assert all(one.cases > 0 and not one.errors and not one.drawn for one in runs)


def _control(name, make):
    return controls._Control(name, make, drawn=False)


@pytest.mark.parametrize(("failed", "status"), [((), 0), (("top-k.keep",), 1)])
def test_the_table_counts_every_run(tmp_path, failed, status):
    """All runs are known, so that none is made; the last line was cut off."""
    names = [one.name for one in controls_of(0)]
    runs = [
        ControlRun(
            control=name,
            run_seed=SEED,
            drawn=False,
            failed=failed if name == "Gumbel" else (),
            errors=(),
            cases=376,
            draws=1000,
            seconds=1.0,
        )
        for name in names
    ]
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
