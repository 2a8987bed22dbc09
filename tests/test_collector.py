"""The collector is left as it was found."""

from __future__ import annotations

import gc

import pytest

from refsampler.conformance.collector import sparing_what_exists


@pytest.fixture(autouse=True)
def thawed():
    assert gc.get_freeze_count() == 0
    yield
    gc.unfreeze()


def test_what_exists_is_frozen_within_and_thawed_after():
    with sparing_what_exists():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_an_error_within_thaws_it_too():
    with pytest.raises(KeyError), sparing_what_exists():
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_the_caller_froze_stays_frozen():
    gc.freeze()
    before = gc.get_freeze_count()
    with sparing_what_exists():
        assert gc.get_freeze_count() == before
    assert gc.get_freeze_count() == before


def test_a_cycle_made_within_is_still_found():
    with sparing_what_exists():
        circle: list[object] = []
        circle.append(circle)
        del circle
        assert gc.collect() >= 1
