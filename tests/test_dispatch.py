"""Dispatch: which path a situation gets, worked by hand from the table's reasons."""

import importlib.util
import warnings

import pytest

from refsampler.backends.dispatch import TABLE, Path, Situation, choose, here, opened
from refsampler.backends.native import NativeKernel


def everything(_):
    return True


def only(*paths):
    return lambda path: path in paths


@pytest.mark.parametrize(
    ("situation", "path"),
    [
        (Situation("cuda", architecture="sm90"), "flashinfer"),
        (Situation("cuda", architecture="sm120"), "flashinfer"),
        (Situation("cuda", architecture="sm75"), "triton"),
        (Situation("cuda", architecture="sm90", seeds=True), "triton"),
        (Situation("cuda", architecture="sm90", processed=True), "triton"),
        (Situation("cuda", architecture="sm90", fp64=True), "triton"),
        (Situation("rocm", architecture="gfx942"), "triton"),
        (Situation("xpu"), "triton"),
        (Situation("cpu"), "cpu"),
        (Situation("cpu", processed=True, seeds=True, fp64=True), "cpu"),
        (Situation("mps"), "native"),
    ],
)
def test_where_everything_is_installed(situation, path):
    choice = choose(situation, everything)
    assert choice.path == path
    assert not choice.notice


@pytest.mark.parametrize(
    ("situation", "installed", "path"),
    [
        (Situation("cuda", architecture="sm90"), (Path.TRITON,), "triton"),
        (Situation("rocm", architecture="gfx942"), (Path.AITER,), "aiter"),
        (Situation("rocm", architecture="gfx1250"), (Path.AITER,), "native"),
        (Situation("rocm", architecture="gfx942", seeds=True), (Path.AITER,), "native"),
        (Situation("xpu"), (Path.CPU,), "native"),
    ],
)
def test_where_something_is_missing_the_next_row_that_fits_is_taken(situation, installed, path):
    choice = choose(situation, only(*installed))
    assert choice.path == path
    assert choice.notice


def test_a_machine_without_numba_falls_back_to_native_with_one_notice(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "numba" else find(name)
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        backends = [opened(Situation("cpu")) for _ in range(3)]
    assert all(isinstance(backend, NativeKernel) for backend in backends)
    assert [str(one.message) for one in seen] == [
        "native samples, because cpu cannot be used here; pip install 'refsampler[cpu]'"
    ]


def test_every_row_has_a_reason_and_the_last_one_takes_everything():
    assert all(route.reason for route in TABLE)
    assert (TABLE[-1].device, TABLE[-1].path) == ("*", "native")
    assert here("cpu") == Situation("cpu")
