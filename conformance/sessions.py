"""Sessions: an engine driven through the steps of a case, with requests that live long.

The same steps can be asked three ways: in one session, each step in a session freshly opened with
the requests as they then stand, and one request by itself.  A right engine cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from refsampler.backends.protocol import Engine, Session
from refsampler.backends.stdio.wire import WireFault
from refsampler.conformance.answers import read_output
from refsampler.conformance.case import Case
from refsampler.conformance.closing import closed_after
from refsampler.conformance.subject import Draw, OpenSubject, SubjectError, derived_seed, seeded
from refsampler.request import Request

__all__ = [
    "asking",
    "drive",
    "open_session",
    "opened",
    "sample_fresh",
    "sample_step",
    "step_cases",
]


@contextmanager
def asking() -> Iterator[None]:
    """Turn what the backend raises inside into a SubjectError."""
    try:
        yield
    except (SubjectError, WireFault):
        raise
    except (Exception, SystemExit) as error:
        raise SubjectError(f"{type(error).__name__}: {error}") from error


def open_session(subject: OpenSubject, vocab: int, seed: int) -> Session:
    """Open a session, which the caller closes.

    Raises:
        SubjectError: the backend raised.

    """
    assert isinstance(subject.backend, Engine)
    with asking():
        return subject.backend.open(vocab, seed)


@contextmanager
def opened(
    subject: OpenSubject,
    vocab: int,
    seed: int,
    telling: Callable[[], AbstractContextManager[None]] = asking,
) -> Iterator[Session]:
    """Open a session that is closed at the end.

    Args:
        subject: an engine.
        vocab: V.
        seed: of the session.
        telling: what becomes of an error while it closes.

    Raises:
        SubjectError: the backend raised.

    """
    with closed_after(open_session(subject, vocab, seed), telling) as session:
        yield session


def step_cases(case: Case) -> tuple[Case, ...]:
    """Return each step as a batch of its own, the requests as they stand there."""
    parts, start = [], 0
    for step in case.steps:
        stop = start + len(step.ids)
        recipe = replace(case.logits, rows=case.logits.rows[start:stop])
        requests = case.requests[start:stop]
        parts.append(replace(case, logits=recipe, requests=requests, steps=()))
        start = stop
    return tuple(parts)


def drive(
    subject: OpenSubject, case: Case, seed: int, *, only: int | None = None
) -> tuple[Draw, ...]:
    """Sample every step of a case in one session.

    Args:
        subject: an engine.
        case: with steps.
        seed: of the session.
        only: the id of the one request that takes part; None is all of them.

    Raises:
        SubjectError: the backend raised.

    """
    draws = []
    known: dict[int, Request] = {}
    with opened(subject, case.logits.vocab, seed) as session:
        for step, part in zip(case.steps, step_cases(case), strict=True):
            rows = [row for row, name in enumerate(step.ids) if only in (None, name)]
            asked = {step.ids[row]: part.requests[row] for row in rows}
            with asking():
                for name, request in asked.items():
                    _catch_up(session, name, known.get(name), request, left=name in step.removed)
                for name in step.removed:
                    if known.pop(name, None) is not None:
                        session.remove(name)
                for name, request in asked.items():
                    if name not in known:
                        session.add(name, request)
            known |= asked
            if rows:
                draws.append(sample_step(subject, session, part, tuple(asked), rows))
    return tuple(draws)


def _catch_up(
    session: Session, name: int, before: Request | None, now: Request, *, left: bool
) -> None:
    """Accept the tokens that the request's output has gained since it was last sampled."""
    if before is None or left:
        return
    gained = now.output[len(before.output) :]
    if gained:
        session.accept([name], [gained])


def sample_step(
    subject: OpenSubject, session: Session, part: Case, names: tuple[int, ...], rows: list[int]
) -> Draw:
    """Sample some rows of a batch in a session that runs.

    Raises:
        SubjectError: the backend raised.

    """
    logits = part.build_logits(subject.capabilities.device)[rows]
    before = logits.clone()
    seed = derived_seed(subject.run_seed, "session", *names)
    with asking(), seeded(seed, subject.capabilities.device):
        output = session.sample(names, logits)
    read = read_output(output, *logits.shape)
    changed = not logits.equal(before)
    return Draw(read.ids, read.output, None, changed, read.form)


def sample_fresh(subject: OpenSubject, case: Case) -> tuple[Draw, ...]:
    """Sample every step in a session opened for it, where each request is added as it stands.

    Raises:
        SubjectError: the backend raised.

    """
    key = case.id
    return tuple(
        subject.sample(part, number, f"{key}/fresh") for number, part in enumerate(step_cases(case))
    )
