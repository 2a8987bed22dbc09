"""Turns: large batches of processes that share a device come one after the other."""

import os
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from refsampler.conformance import memory
from refsampler.conformance.checks.large import CHECKS as LARGE
from refsampler.conformance.checks.pairs import SIZES
from refsampler.conformance.subject import OpenSubject
from tests.broken_streams import Independent

FAR = next(one for one in SIZES if one.name == "independent-farthest-rows")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def lock(folder: Path) -> FileLock:
    return FileLock(folder / f"refsampler-{os.getuid()}-cpu.lock")


def test_a_large_batch_waits_until_another_has_gone(folder):
    said = []

    def other():
        with memory.taking_turns("cpu", memory.ELEMENTS):
            said.append("other")

    with memory.taking_turns("cpu", memory.ELEMENTS):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.3)
        said.append("first")
    thread.join()
    assert said == ["first", "other"]


def test_a_smaller_one_waits_for_nobody(monkeypatch):
    monkeypatch.delattr(memory, "FileLock")
    with memory.taking_turns("cpu", memory.ELEMENTS - 1):
        pass


def test_nobody_waits_for_ever(folder, monkeypatch):
    monkeypatch.setattr(memory, "_PATIENCE_S", 0.1)
    with lock(folder), memory.taking_turns("cpu", memory.ELEMENTS):
        pass


@pytest.mark.parametrize(("elements", "emptied"), [(memory.ELEMENTS, [True]), (1, [])])
def test_what_torch_keeps_goes_back_before_the_next_turn(folder, monkeypatch, elements, emptied):
    seen = []

    def empty():
        with pytest.raises(TimeoutError):
            FileLock(folder / f"refsampler-{os.getuid()}-cuda.lock").acquire(timeout=0)
        seen.append(True)

    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    with memory.taking_turns("cuda", elements):
        pass
    assert seen == emptied


def test_without_room_rows_far_apart_are_not_asked_when_their_turn_comes(folder):
    subject = OpenSubject(Independent(), 1)
    subject.capabilities = replace(subject.capabilities, max_elements=None)
    with memory.as_if_free(80_000_000_000):
        asked = FAR.ask(subject, FAR.first_case)
    # 7 tensors of 32,832 rows of 2^17 float32: 17.2 GB each
    assert asked.unasked == "80.0 GB are free on cpu, 120 GB are wanted for 7 tensors of 17.2 GB"
    large, _ = LARGE
    with memory.as_if_free(80_000_000_000):
        *_, case = large.cases(subject.capabilities, 1)
        assert large.ask is not None
        assert large.ask(subject, case).unasked == asked.unasked
