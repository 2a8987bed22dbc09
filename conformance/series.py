"""Series: successive calls on one state of the generators, threads side by side, and load.

`OpenSubject` seeds the generator before every call, which would hide a kernel that does not advance
it; here it is seeded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from threading import Barrier, Event

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Engine, Feature
from refsampler.conformance.case import Case, Layout
from refsampler.conformance.closing import closed_after
from refsampler.conformance.subject import OpenSubject, SubjectError, derived_seed
from refsampler.metadata import SamplingMetadata
from refsampler.request import Request
from refsampler.sampler import SamplerOutput

__all__ = ["Later", "Series", "SeriesSubject"]

_LOAD_ROWS = 64
_PATIENCE_S = 60.0


class Later(StrEnum):
    """What torch draws from the subject's generator after a call."""

    NOTHING = "nothing"
    UNIFORMS = "uniforms"
    RACE = "race"


@dataclass(frozen=True, slots=True)
class Series:
    """Successive calls.

    Attributes:
        ids: of the subject.
        later: torch's own draws after each call: uniforms in [0, 1), or the ids of a flat race;
            no columns if nothing was asked.

    """

    ids: Int64[np.ndarray, "calls rows"]
    later: Float64[np.ndarray, "calls later"]


class SeriesSubject(OpenSubject):
    """A subject that is asked again without a fresh seed."""

    def series(self, case: Case, rows: int, calls: int, later: Later = Later.NOTHING) -> Series:
        """Draw `rows` ids in each of `calls` successive calls.

        Args:
            case: of one unseeded row.
            rows: of each call.
            calls: in a row; an engine keeps its session.
            later: what torch draws from the same generator after each call.

        Raises:
            SubjectError: the backend raised, or gave no ids.

        """
        logits, metadata = self._replicate(case, rows)
        seed = derived_seed(self.run_seed, case.id, "series", later)
        # an engine seeds generators of its own: with torch's seed they would rightly be the same
        own = derived_seed(seed, "session")
        with self._seeded(seed), self._source(case.requests * rows, logits, metadata, own) as draw:
            pairs = [(draw(), _torch_draws(later, logits)) for _ in range(calls)]
        ids, after = zip(*pairs, strict=True)
        return Series(np.stack(ids), np.stack(after))

    def steps(
        self, case: Case, calls: int, seed: int, rows: tuple[Request, ...] = ()
    ) -> Int64[np.ndarray, "calls rows"]:
        """Draw the case's rows in successive calls; seeded rows go on where their seed stands.

        Args:
            case: the batch; an engine keeps its session.
            calls: in a row.
            seed: of the default generator, and of an engine's session.
            rows: requests that take turns with the case's one row; without them its own.

        Raises:
            SubjectError: the backend raised, or gave no ids.

        """
        requests = rows or case.requests
        logits = case.build_logits(self.capabilities.device)
        logits = logits.expand(len(requests), -1).contiguous()
        metadata = SamplingMetadata.from_requests(
            requests, case.logits.vocab, device=logits.device, thinking=case.thinking
        )
        with self._seeded(seed), self._source(requests, logits, metadata, seed) as draw:
            return np.stack([draw() for _ in range(calls)])

    def own_stream(
        self, case: Case, rows: int, calls: int, *, explicit: bool
    ) -> Int64[np.ndarray, "calls rows"]:
        """Draw `rows` ids in each of `calls` successive calls, as no other run seed does.

        The seeds are the run seed plus a constant of the case: a hash of it could give two run
        seeds the same one, which is rarer than nothing that a run promises.

        Args:
            case: of one unseeded row.
            rows: of each call.
            calls: in a row.
            explicit: whether each row has a seed of its own; otherwise none has.

        Raises:
            SubjectError: the backend raised, or gave no ids.

        """
        (asked,) = case.requests
        seed = self.run_seed + derived_seed(case.id, "own")
        seeds = range(seed, seed + rows) if explicit else [None] * rows
        requests = tuple(replace(asked, params=replace(asked.params, seed=one)) for one in seeds)
        return self.steps(case, calls, seed, requests)

    def threads(self, case: Case, rows: int, calls: int) -> Int64[np.ndarray, "2 calls rows"]:
        """Draw from two threads at a time, each `calls` successive calls of `rows` ids.

        Raises:
            SubjectError: the backend raised, or gave no ids.

        """
        logits, metadata = self._replicate(case, rows)
        seed = derived_seed(self.run_seed, case.id, "threads")
        start = Barrier(2, timeout=_PATIENCE_S)

        def work(thread: int) -> Int64[np.ndarray, "calls rows"]:
            with self._source(case.requests * rows, logits, metadata, seed + thread) as draw:
                start.wait()
                return np.stack([draw() for _ in range(calls)])

        with self._seeded(seed), ThreadPoolExecutor(2) as pool:
            return np.stack(list(pool.map(work, range(2))))

    @contextmanager
    def under_load(self, case: Case) -> Iterator[None]:
        """Let another thread draw from a case of one row, again and again, meanwhile.

        Raises:
            SubjectError: the backend raised there.

        """
        logits, metadata = self._replicate(case, _LOAD_ROWS)
        requests = case.requests * _LOAD_ROWS
        stop = Event()

        def work() -> None:
            with self._source(requests, logits, metadata, self.run_seed) as draw:
                while not stop.is_set():
                    draw()

        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(work)
            try:
                yield
            finally:
                stop.set()
            beside.result()

    @contextmanager
    def _source(
        self, requests: Sequence[Request], logits: Tensor, metadata: SamplingMetadata, seed: int
    ) -> Iterator[Callable[[], Int64[np.ndarray, " rows"]]]:
        """Give a function that draws one call after another from the same rows."""
        if self.capabilities.level == 3:
            with self._running(requests, logits, seed) as draw:
                yield draw
            return
        in_place = Feature.IN_PLACE in self.capabilities.features
        calls = count()

        def from_metadata() -> Int64[np.ndarray, " rows"]:
            handed = logits.clone() if in_place else logits
            # a seeded row may be a function of seed and step alone: each call is a step of its own
            asked = replace(metadata, steps=[next(calls)] * len(logits))
            drawn = self._from_metadata(handed, asked, Layout.CONTIGUOUS, watch=False)
            return _whole(drawn.ids, len(logits))

        yield from_metadata

    @contextmanager
    def _running(
        self, requests: Sequence[Request], logits: Tensor, seed: int
    ) -> Iterator[Callable[[], Int64[np.ndarray, " rows"]]]:
        """Give a function that samples one session again and again.

        Histories grow where a row has a seed: its ids may be a function of that and of the step.
        """
        assert isinstance(self.backend, Engine)
        seeded = any(request.params.seed is not None for request in requests)
        with _blamed():
            opened = self.backend.open(logits.shape[1], seed)
        with closed_after(opened, _blamed) as session:
            with _blamed():
                for row, request in enumerate(requests):
                    session.add(row, request)

            def from_session() -> Int64[np.ndarray, " rows"]:
                with _blamed():
                    output: SamplerOutput = session.sample(range(len(logits)), logits.clone())
                    ids = output.sampled_token_ids.reshape(-1).cpu().numpy().astype(np.int64)
                    if seeded and len(ids) == len(requests):
                        session.accept(range(len(ids)), [[one] for one in ids.tolist()])
                return _whole(ids, len(logits))

            yield from_session


@contextmanager
def _blamed() -> Iterator[None]:
    """Turn what the backend raises into a `SubjectError`."""
    try:
        yield
    except Exception as error:
        raise SubjectError(f"{type(error).__name__}: {error}") from error


def _whole(ids: Int64[np.ndarray, " drawn"], rows: int) -> Int64[np.ndarray, " rows"]:
    if len(ids) != rows:
        raise SubjectError(f"{rows} rows gave {len(ids)} ids")
    return ids


def _torch_draws(later: Later, logits: Tensor) -> Float64[np.ndarray, " later"]:
    """Draw from torch's default generator, as its next user would."""
    match later:
        case Later.NOTHING:
            return np.empty(0)
        case Later.UNIFORMS:
            drawn = torch.rand(len(logits), device=logits.device)
        case Later.RACE:
            drawn = torch.empty_like(logits).exponential_().argmin(dim=-1)
    return drawn.cpu().numpy().astype(np.float64)
