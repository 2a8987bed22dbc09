"""A subject in its own process: what it does there costs one call, and nothing of it stays."""

import mmap
import os
import signal
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from refsampler.backends.limits import CAN_LIMIT_MEMORY, memory_in_use
from refsampler.backends.process import (
    IsolatedSubject,
    SubjectCrashed,
    SubjectDidNotOpen,
    SubjectEnded,
    SubjectGarbage,
    SubjectOutOfMemory,
    SubjectTimedOut,
    WorkerFault,
)
from refsampler.backends.protocol import DType
from refsampler.backends.registry import BackendNotFound, resolve
from refsampler.conformance.case import Case, Layout
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.conformance.subject import OpenSubject, SubjectError
from refsampler.logprobs import LogprobsTensors
from refsampler.params import SamplingParams
from refsampler.request import Request

# Does by the seed of the first row what its name says; without one it is a right sampler.
WRONG = """
import ctypes, dataclasses, os, stat, subprocess, sys, time
from collections import namedtuple
from refsampler.backends.native import backend as native
from refsampler.sampler import Sampler

Answer = namedtuple("Answer", "sampled_token_ids logprobs_tensors valid")

def rubbish_on_the_pipe():
    for fd in range(3, 64):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b"rubbish" * 100)
        except OSError:
            pass

def allocates():
    kept = []
    while True:
        try:
            kept.append(b"x" * 2**24)
        except MemoryError:  # the kernel's bound is twice the limit: only the parent ends this
            time.sleep(60)

def prints():
    print("rubbish", flush=True)
    os.write(1, b"rubbish" * 100)
    ctypes.CDLL(None).puts(b"rubbish")
    os.write(2, b"rubbish\\n" * 50000)  # several times what a pipe holds

def leaves_a_helper():
    helper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    print("helper", helper.pid, file=sys.stderr)
    os._exit(3)

def raises():
    raise ArithmeticError("no such luck \\ud800")

class Wrong:
    capabilities = dataclasses.replace(native.capabilities, level=2, folds=frozenset())

    def sample(self, logits, metadata):
        seed = metadata.generators.get(0)
        mode = 0 if seed is None else seed.initial_seed()
        kernel = native.draw
        output = Sampler(filter_and_draw=kernel, folds=native.capabilities.folds)(logits, metadata)
        if mode == 1: ctypes.string_at(0)
        if mode == 2: time.sleep(60)
        if mode == 3: allocates()
        if mode == 4: prints()
        if mode == 5: leaves_a_helper()
        if mode == 6: raises()
        if mode == 7: return Answer(output.sampled_token_ids, None, [True])
        if mode == 8: return Answer("no tensor", None, output.valid)
        if mode == 9: rubbish_on_the_pipe()
        if mode == 10: bytearray(2**33)
        return output

backend = Wrong()

def dies(): os._exit(4)

def once():
    if os.path.exists("opened"): raise OSError("the device is gone")
    open("opened", "x").close()
    return backend
"""
SEGFAULTS, SLEEPS, ALLOCATES, PRINTS, LEAVES_A_HELPER = 1, 2, 3, 4, 5
RAISES, GARBAGE_PART, GARBAGE, RUBBISH_ON_THE_PIPE, ONE_BIG_BLOCK = 6, 7, 8, 9, 10

LIMIT = 2**29


def batch(*params, vocab=40, dtype=DType.FLOAT32, layout=Layout.CONTIGUOUS):
    rows = tuple(RowRecipe("bell", seed=row, scale=2.0) for row in range(len(params)))
    requests = tuple(Request(one) for one in params)
    return Case(LogitsRecipe(vocab, rows), requests, dtype=dtype, layout=layout)


def isolated(spec, timeout_s=4.0, memory_bytes=None, opening_s=120.0):
    return IsolatedSubject(
        spec, 7, timeout_s=timeout_s, memory_bytes=memory_bytes, opening_s=opening_s
    )


def mode(number):
    return batch(SamplingParams(seed=number))


PLAIN = batch(SamplingParams())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the wrong kernels, which the child finds as this process does."""
    where = tmp_path_factory.mktemp("wrong")
    (where / "wrong_for_a_test.py").write_text(WRONG)
    sys.path.insert(0, str(where))
    yield where
    sys.path.remove(str(where))


@pytest.fixture(scope="module")
def wrong(folder):
    with isolated("wrong_for_a_test:backend", timeout_s=3.0, memory_bytes=LIMIT) as subject:
        yield subject


@pytest.fixture(scope="module")
def expected():
    """What the right kernel draws in this process, under the same run seed."""
    return OpenSubject(resolve("native"), 7).sample(PLAIN, 0, "k").ids


def gone(pid):
    """Wait until a process that is not our child is gone, or only its init's to reap."""
    for _ in range(200):
        try:
            status = Path(f"/proc/{pid}/stat").read_text("utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return True
        if status.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


def open_files():
    return len(list(Path("/dev/fd").iterdir()))


def assert_same(one, other):
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def assert_same_draw(one, other):
    assert one.ids.dtype == other.ids.dtype
    np.testing.assert_array_equal(one.ids, other.ids)
    assert (one.changed, one.form) == (other.changed, other.form)
    assert_same(one.processed, other.processed)
    assert (one.output is None) == (other.output is None)
    if one.output is None:
        return
    assert_same(one.output.sampled_token_ids, other.output.sampled_token_ids)
    assert_same(one.output.valid, other.output.valid)
    ours, theirs = one.output.logprobs_tensors, other.output.logprobs_tensors
    assert (ours is None) == (theirs is None)
    for field in fields(LogprobsTensors) if ours is not None else ():
        assert_same(getattr(ours, field.name), getattr(theirs, field.name))


def test_a_right_kernel_draws_the_same_bits_in_its_own_process():
    here = OpenSubject(resolve("native"), 11)
    mixed = batch(
        SamplingParams(top_k=5, logprobs=3),
        SamplingParams(temperature=0.0),
        SamplingParams(top_p=0.8, seed=5),
        SamplingParams(min_p=0.1, temperature=1.7, repetition_penalty=1.3),
    )
    cases = [
        mixed,
        replace(mixed, dtype=DType.BFLOAT16, layout=Layout.TRANSPOSED),
        Case(LogitsRecipe(9, ()), ()),
        # The request is longer than a pipe holds.
        Case(
            LogitsRecipe(9, (RowRecipe(),)),
            (Request(output=(3,) * 100_000),),
        ),
    ]
    with IsolatedSubject("native", 11, timeout_s=30, memory_bytes=2**32) as there:
        assert there.capabilities == here.capabilities
        for case in cases:
            for call, key in ((0, "k"), (1, "k"), (0, "other")):
                ours = here.sample(case, call, key)
                assert_same_draw(there.sample(case, call, key), ours)
        for call in range(2):
            drawn = there.sample_many(PLAIN, 1000, call)
            np.testing.assert_array_equal(drawn, here.sample_many(PLAIN, 1000, call))
            assert drawn.dtype == np.int64
        with pytest.raises(WorkerFault, match="ValueError"):
            there.sample(batch(SamplingParams(), vocab=-1), 0, "k")
        there.sample(PLAIN, 0, "k")
    with pytest.raises(ValueError, match="closed"):
        there.sample(PLAIN, 0, "k")
    # It ended by itself, and has been reaped.
    assert there._child._process.returncode == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(there.pid, 0)


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (RAISES, SubjectError, r"^ArithmeticError: no such luck \?$"),
        pytest.param(
            ONE_BIG_BLOCK,
            SubjectOutOfMemory,
            r"out of memory \(limit 0.50 GiB\): MemoryError",
            marks=pytest.mark.skipif(not CAN_LIMIT_MEMORY, reason="memory is limited on Linux"),
        ),
    ],
)
def test_what_the_child_survives_leaves_it_running(wrong, expected, number, kind, words):
    wrong.sample(PLAIN, 0, "k")
    pid = wrong.pid
    with pytest.raises(SubjectError, match=words) as caught:
        wrong.sample(mode(number), 0, "k")
    assert type(caught.value) is kind
    np.testing.assert_array_equal(wrong.sample(PLAIN, 0, "k").ids, expected)
    assert wrong.pid == pid


@pytest.mark.parametrize(
    ("number", "form"),
    [
        (GARBAGE, "str in place of a tensor"),
        (GARBAGE_PART, "valid: list in place of a tensor"),
    ],
)
def test_rubbish_comes_back_as_a_wrong_form(wrong, number, form):
    draw = wrong.sample(mode(number), 0, "k")
    assert (draw.output, draw.form) == (None, form)


def test_prints_do_not_get_between(wrong, expected):
    wrong.sample(PLAIN, 0, "k")
    pid = wrong.pid
    right = OpenSubject(resolve("native"), 7).sample(mode(PRINTS), 0, "k")
    np.testing.assert_array_equal(wrong.sample(mode(PRINTS), 0, "k").ids, right.ids)
    np.testing.assert_array_equal(wrong.sample(PLAIN, 0, "k").ids, expected)
    assert wrong.pid == pid


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (SEGFAULTS, SubjectCrashed, r"SIGSEGV[\s\S]*in string_at"),
        (SLEEPS, SubjectTimedOut, r"no answer within 3 s\n[\s\S]*in sample"),
        pytest.param(
            ALLOCATES,
            SubjectOutOfMemory,
            r"out of memory \(limit 0.50 GiB\): \d\.\d\d GiB were in use",
            marks=pytest.mark.skipif(not CAN_LIMIT_MEMORY, reason="memory is limited on Linux"),
        ),
        (LEAVES_A_HELPER, SubjectCrashed, "the process died: exit code 3"),
        (RUBBISH_ON_THE_PIPE, SubjectGarbage, r"unreadable answer: b'rubbishr"),
    ],
)
def test_what_ends_the_child_costs_one_call(wrong, expected, number, kind, words):
    wrong.sample(PLAIN, 0, "k")
    pid = wrong.pid
    with pytest.raises(SubjectEnded, match=words) as caught:
        wrong.sample(mode(number), 0, "k")
    assert type(caught.value) is kind
    assert len(caught.value.last_lines.splitlines()) <= 20
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)
    if number == LEAVES_A_HELPER:
        assert gone(int(caught.value.last_lines.rpartition("helper ")[2]))
    assert "Extension modules" not in caught.value.last_lines
    np.testing.assert_array_equal(wrong.sample(PLAIN, 0, "k").ids, expected)
    assert wrong.pid != pid


def test_an_interrupt_ends_the_child_and_nothing_of_it_stays(wrong, expected, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    wrong.sample(PLAIN, 0, "k")
    before, pid = open_files(), wrong.pid
    monkeypatch.setattr(wrong._child._selector, "select", interrupted)
    with pytest.raises(KeyboardInterrupt):
        wrong.sample(PLAIN, 0, "k")
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)
    # Three pipes; the selector is a fourth where it is a file.
    assert open_files() in (before - 3, before - 4)
    np.testing.assert_array_equal(wrong.sample(PLAIN, 0, "k").ids, expected)
    assert open_files() == before


def test_what_cannot_be_opened_is_no_finding_about_the_subject(folder):
    assert not issubclass(SubjectDidNotOpen, SubjectError)
    with pytest.raises(BackendNotFound, match=r"'absent' is not known: allowed are .*native, "):
        isolated("absent")
    with pytest.raises(SubjectDidNotOpen, match=r"'wrong_for_a_test:dies'.* exit code 4"):
        isolated("wrong_for_a_test:dies")
    with pytest.raises(SubjectDidNotOpen, match=r"no answer within 0\.1 s"):
        isolated("native", opening_s=0.1)


def test_a_subject_that_does_not_open_again_is_given_up(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with isolated("wrong_for_a_test:once") as subject:
        assert subject.limits == "4 s a call, memory not limited"
        os.kill(subject.pid, signal.SIGKILL)
        with pytest.raises(SubjectCrashed, match="SIGKILL"):
            subject.sample(PLAIN, 0, "k")
        for _ in range(2):
            with pytest.raises(SubjectDidNotOpen, match=r"not opened again.*the device is gone"):
                subject.sample(PLAIN, 0, "k")


@pytest.mark.parametrize("field", ["timeout_s", "memory_bytes", "opening_s"])
def test_limits_are_positive(field):
    with pytest.raises(ValueError, match=f"{field} = 0 is refused: allowed is above 0"):
        isolated("native", **{field: 0})


@pytest.mark.skipif(not CAN_LIMIT_MEMORY, reason="memory is limited on Linux")
def test_memory_in_use_is_what_was_touched():
    # Mapped, because an allocator may hand out again what is resident already.
    size = 2**27
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as region:
        before = memory_in_use(os.getpid())
        region.write(b"x" * size)
        used = memory_in_use(os.getpid()) - before
    # What else the process gives back or takes meanwhile is far below 16 MiB.
    assert abs(used - size) < 2**24
