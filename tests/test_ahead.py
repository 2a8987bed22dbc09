"""Batches drawn by a process ahead are those that would be drawn here, also if it dies."""

import os

import pytest

from refsampler.conformance import ahead
from refsampler.conformance.checks import generated as checks
from refsampler.conformance.faults.right import RightKernel

CAPABILITIES = RightKernel().capabilities


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(checks, "COUNT", 6)
    monkeypatch.setattr(checks, "_drawn", {})


def dies(_capabilities, _run_seed, _there):
    os._exit(3)


def test_the_batches_come_from_the_other_process_unchanged(monkeypatch):
    here = checks.generated(CAPABILITIES, 8)
    monkeypatch.setattr(checks, "_drawn", {})
    with ahead.batches_ahead(CAPABILITIES, 8, worth=True) as wait:
        # nobody draws in this process from here on
        monkeypatch.setattr(checks, "collect", None)
        wait()
        assert checks.generated(CAPABILITIES, 8) == here
    assert len({case.id for case in here}) == 6


@pytest.mark.parametrize("worth", [True, False])
def test_a_process_that_dies_or_was_not_worth_it_costs_nothing_but_time(monkeypatch, worth):
    monkeypatch.setattr(ahead, "_draw", dies)
    with ahead.batches_ahead(CAPABILITIES, 9, worth=worth) as wait:
        wait()
    assert len(checks.generated(CAPABILITIES, 9)) == 6


def test_batches_of_the_last_runs_are_kept():
    drawn = {seed: checks.generated(CAPABILITIES, seed) for seed in range(6)}
    kept = {wish.run_seed for wish in checks._drawn}
    assert kept == {2, 3, 4, 5}
    assert checks.generated(CAPABILITIES, 5) is drawn[5]
