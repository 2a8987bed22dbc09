"""The collector is left as it was found."""

from __future__ import annotations

import gc

import pytest

from refsampler.conformance.collector import rare_collections


def test_collections_are_rare_within_and_as_before_after():
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_an_error_within_leaves_it_so_too():
    before = gc.get_threshold()
    with pytest.raises(KeyError), rare_collections():
        raise KeyError
    assert gc.get_threshold() == before


def test_a_cycle_made_within_is_still_found():
    with rare_collections():
        circle: list[object] = []
        circle.append(circle)
        del circle
        assert gc.collect() >= 1
