"""Every session is closed, also where the engine raises in it."""

from __future__ import annotations

import itertools
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import pytest

from refsampler.backends.reference import ReferenceSession
from refsampler.conformance.case import Case
from refsampler.conformance.checks import all_checks
from refsampler.conformance.checks.base import Check, Kind
from refsampler.conformance.closing import closed_after
from refsampler.conformance.faults.right import RightEngine
from refsampler.conformance.subject import OpenSubject, SubjectError
from refsampler.request import Request


class CountedEngine(RightEngine):
    """Counts its sessions; each raises when it is sampled for the `raises`-th time."""

    def __init__(self, raises: int) -> None:
        super().__init__()
        self.opened = self.closed = 0
        engine = self

        class Session(ReferenceSession):
            def __init__(self, *args, **kwargs) -> None:
                super().__init__(*args, **kwargs)
                engine.opened += 1
                self._samples = 0

            def sample(self, ids, logits):
                self._samples += 1
                if self._samples == raises:
                    raise RuntimeError("out of blocks")
                return super().sample(ids, logits)

            def close(self) -> None:
                engine.closed += 1
                super().close()

        self.session = Session


def _asking() -> list[Check]:
    kinds = (Kind.EXACT, Kind.NEAR_CERTAIN)
    return [one for one in all_checks() if one.ask is not None and one.kind in kinds]


def _ask(check: Check, subject: OpenSubject, case: Case) -> None:
    assert check.ask is not None
    check.ask(subject, case)


@pytest.mark.parametrize("raises", [1, 2])
@pytest.mark.parametrize("check", _asking(), ids=lambda check: check.name)
def test_a_check_closes_what_it_opens(check, raises):
    engine = CountedEngine(raises)
    subject = OpenSubject(engine, 5)
    for case in itertools.islice(check.cases(engine.capabilities, 5), 1):
        with suppress(SubjectError):
            _ask(check, subject, case)
    assert engine.closed == engine.opened


def test_the_checks_that_open_sessions_are_among_them():
    opened = set()
    for check in _asking():
        engine = CountedEngine(raises=1)
        for case in itertools.islice(check.cases(engine.capabilities, 5), 1):
            with suppress(SubjectError):
                _ask(check, OpenSubject(engine, 5), case)
        if engine.opened:
            opened.add(check.name)
    assert len(opened) >= 8


@pytest.mark.parametrize("raises", [1, 2])
def test_a_batch_and_a_long_session(raises):
    engine = CountedEngine(raises)
    subject = OpenSubject(engine, 5)
    check = next(one for one in all_checks() if one.name == "greedy-argmax")
    case = next(iter(check.cases(engine.capabilities, 5)))
    with suppress(SubjectError):
        subject.sample(case, 0, "key")
    row = replace(
        case, logits=replace(case.logits, rows=case.logits.rows[:1]), requests=(Request(),)
    )
    with pytest.raises(SubjectError, match="out of blocks"):
        subject.sample_many(row, 2**13, 0)
    assert engine.closed == engine.opened == 2


class _Failing(ReferenceSession):
    def close(self) -> None:
        raise OSError("already gone")


def test_an_interrupt_does_not_wait_for_the_engine():
    session = object.__new__(_Failing)
    with pytest.raises(KeyboardInterrupt), closed_after(session, nullcontext):
        raise KeyboardInterrupt


def test_what_a_check_found_counts_where_closing_fails():
    class Engine(RightEngine):
        class session(ReferenceSession):  # noqa: N801 - the attribute that the engine opens
            def add(self, request_id, request):
                try:
                    super().add(request_id, request)
                except ValueError:
                    raise ValueError("no") from None

            def close(self) -> None:
                raise OSError("already gone")

    check = next(one for one in all_checks() if one.name == "bad-requests")
    assert check.ask is not None
    case = next(iter(check.cases(Engine().capabilities, 5)))
    found = check.ask(OpenSubject(Engine(), 5), case).findings
    assert {one.clause for one in found} == {"input.validated"}


def test_the_first_error_is_told():
    session = object.__new__(_Failing)
    with pytest.raises(KeyError), closed_after(session, nullcontext):
        raise KeyError


def test_an_error_of_closing_is_told_in_our_words():
    @contextmanager
    def telling():
        try:
            yield
        except OSError as error:
            raise SubjectError(str(error)) from error

    session = object.__new__(_Failing)
    with pytest.raises(SubjectError, match="already gone"), closed_after(session, telling):
        pass
