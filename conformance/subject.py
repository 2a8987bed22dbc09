"""Subject: a backend of any level behind one call, `sample(case, call) -> Draw`.

Level 1 is wrapped in the reference pipeline, level 2 is called as it is, level 3 gets its rows as
requests of a session.  Whatever the backend raises becomes a `SubjectError`; everything else that
goes wrong here is the harness's fault.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from refsampler.backends.protocol import (
    BatchSampler,
    Capabilities,
    Drawn,
    Engine,
    Feature,
    Kernel,
    Rows,
    Session,
    Subject,
)
from refsampler.backends.stdio.wire import WireFault
from refsampler.conformance.answers import read_drawn, read_output
from refsampler.conformance.built import BuiltLogits
from refsampler.conformance.case import Case, Layout, lay_out
from refsampler.conformance.closing import closed_after
from refsampler.metadata import SamplingMetadata
from refsampler.params import GREEDY_EPSILON
from refsampler.request import Request
from refsampler.sampler import Sampler, SamplerOutput

__all__ = ["Draw", "OpenSubject", "SubjectError", "derived_seed", "seeded"]


_LONG_LIVED = 256
"""Requests of the session from which an engine's laws are drawn."""


class SubjectError(Exception):
    """The backend raised on a legal call; the cause is the backend's own exception.

    Args:
        words: what happened; the first line says it.
        refused: it raised ValueError or TypeError, as one refuses an input.

    """

    def __init__(self, words: str, *, refused: bool = False) -> None:
        super().__init__(words)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Draw:
    """What one call gave.

    Attributes:
        ids: one a row; empty if the form allows no reading.
        output: of a sampler or engine; of the reference pipeline around a kernel.
        processed: logits that a kernel says it drew from, of its random rows.
        changed: the logits handed over are not the ones that came back.
        form: what is wrong with the form of the result, empty if nothing is.

    """

    ids: Int64[np.ndarray, " num_tokens"]
    output: SamplerOutput | None
    processed: Tensor | None = None
    changed: bool = False
    form: str = ""


def derived_seed(*parts: int | str) -> int:
    """Return a 31-bit seed that is a hash of its parts (rule: run seed, case id, call)."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


@contextmanager
def seeded(seed: int, on: str) -> Iterator[None]:
    """Seed torch's default generators inside, and leave them as they were outside."""
    device = torch.device(on)
    if device.type != "cpu":
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            torch.manual_seed(seed)
            yield
        return
    # torch.manual_seed would also queue a seed, with a stack trace, for GPUs that nobody uses
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


class OpenSubject:
    """A backend that is ready to be asked.

    Args:
        backend: of any level.
        run_seed: feeds the default generator of every call.

    Attributes:
        capabilities: what the backend declares.

    """

    def __init__(self, backend: Subject, run_seed: int) -> None:
        """Read the declaration; nothing is drawn yet."""
        self.backend = backend
        self.run_seed = run_seed
        self.capabilities: Capabilities = backend.capabilities
        self._replicated: tuple[tuple[str, int], Tensor, SamplingMetadata] | None = None
        self._built: BuiltLogits | None = None
        self._session: tuple[tuple[str, int], Session, Tensor] | None = None

    def sample(self, case: Case, call: int, key: str) -> Draw:
        """Sample the case's batch once, from fresh request state.

        Args:
            case: the batch.
            call: number of the call.
            key: names the case and its arrangement; with the run seed and the call it seeds the
                default generator, from which unseeded rows draw.

        Raises:
            SubjectError: the backend raised.

        """
        logits = self._logits(case)
        seed = derived_seed(self.run_seed, key, call)
        if self.capabilities.level == 3:
            with self._seeded(seed):
                return self._from_session(logits, case.requests, seed)
        metadata = SamplingMetadata.from_requests(
            case.requests, case.logits.vocab, device=logits.device, thinking=case.thinking
        )
        with self._seeded(seed):
            return self._from_metadata(logits, metadata, case.layout)

    def sample_many(self, case: Case, rows: int, call: int) -> Int64[np.ndarray, " rows"]:
        """Draw `rows` ids from the law of a case of one unseeded row, in one call.

        Raises:
            SubjectError: the backend raised, or gave no ids.

        """
        seed = derived_seed(self.run_seed, case.id, "law", call)
        if self.capabilities.level == 3:
            with self._seeded(seed):
                return self._from_long_session(case, rows, seed, first=call == 0)
        logits, metadata = self._replicate(case, rows)
        handed = logits.clone() if Feature.IN_PLACE in self.capabilities.features else logits
        with self._seeded(seed):
            draw = self._from_metadata(handed, metadata, Layout.CONTIGUOUS, watch=False)
        if len(draw.ids) != rows:
            raise SubjectError(f"{rows} rows gave {len(draw.ids)} ids: {draw.form}")
        return draw.ids

    def sample_prepared(self, logits: Tensor, metadata: SamplingMetadata, seed: int) -> Draw:
        """Sample a batch that no case describes, unwatched: it may be too large to copy.

        Raises:
            SubjectError: the backend raised.

        """
        with self._seeded(seed):
            return self._from_metadata(logits, metadata, Layout.CONTIGUOUS, watch=False)

    def _logits(self, case: Case) -> Tensor:
        """Return a fresh copy of the case's logits; rows of the case before are not built again."""
        before = self._built
        if before is None or not before.holds(case):
            before = self._built = BuiltLogits.of(case)
        return lay_out(before.rows(case), case.layout).to(self.capabilities.device)

    def _replicate(self, case: Case, rows: int) -> tuple[Tensor, SamplingMetadata]:
        """Return the case's row `rows` times, kept from call to call."""
        key = (case.id, rows)
        if self._replicated is None or self._replicated[0] != key:
            one = case.build_logits(self.capabilities.device)
            metadata = SamplingMetadata.from_requests(
                case.requests * rows, case.logits.vocab, device=one.device, thinking=case.thinking
            )
            self._replicated = (key, one.expand(rows, -1).contiguous(), metadata)
        return self._replicated[1:]

    def _seeded(self, seed: int) -> AbstractContextManager[None]:
        return seeded(seed, self.capabilities.device)

    def _from_metadata(
        self, logits: Tensor, metadata: SamplingMetadata, layout: Layout, *, watch: bool = True
    ) -> Draw:
        if self.capabilities.level == 2:
            return self._from_sampler(logits, metadata, watch=watch)
        kernel = _Watched(cast("Kernel", self.backend), metadata, layout, watch=watch)
        sampler = Sampler(filter_and_draw=kernel, folds=self.capabilities.folds)
        output = sampler(logits, metadata)
        ids = output.sampled_token_ids[:, 0].cpu().numpy().astype(np.int64)
        if kernel.ids is not None and kernel.own is not None:
            usable = kernel.ids.shape == ids.shape
            ids = np.where(kernel.own, kernel.ids, ids) if usable else ids[:0]
        return Draw(ids, output, kernel.processed, kernel.changed, kernel.form)

    def _from_sampler(self, logits: Tensor, metadata: SamplingMetadata, *, watch: bool) -> Draw:
        before = logits.clone() if watch else logits
        try:
            output = cast("BatchSampler", self.backend).sample(logits, metadata)
        except (Exception, SystemExit) as error:
            raise _raised(error) from error
        read = read_output(output, *logits.shape)
        changed = watch and not _same_bits(before, logits)
        return Draw(read.ids, read.output, None, changed, read.form)

    def _from_session(self, logits: Tensor, requests: Sequence[Request], seed: int) -> Draw:
        assert isinstance(self.backend, Engine)
        before = logits.clone()
        try:
            opened = self.backend.open(logits.shape[1], seed)
            with closed_after(opened, nullcontext) as session:
                for row, request in enumerate(requests):
                    session.add(row, request)
                output = session.sample(range(len(requests)), logits)
        except (Exception, SystemExit) as error:
            raise _raised(error) from error
        read = read_output(output, *logits.shape)
        return Draw(read.ids, read.output, None, not _same_bits(before, logits), read.form)

    def _from_long_session(
        self, case: Case, rows: int, seed: int, *, first: bool
    ) -> Int64[np.ndarray, " rows"]:
        """Sample a few hundred requests again and again; nothing is accepted, so nothing changes.

        Admitting a request costs more than a row's draw, and no engine runs 2^15 of them.
        """
        assert isinstance(self.backend, Engine)
        count = min(rows, _LONG_LIVED)
        try:
            if first or self._session is None or self._session[0] != (case.id, count):
                self._close_session()
                logits = case.build_logits(self.capabilities.device).expand(count, -1).contiguous()
                session = self.backend.open(case.logits.vocab, seed)
                self._session = ((case.id, count), session, logits)
                for row, request in enumerate(case.requests * count):
                    session.add(row, request)
            _, session, logits = self._session
            steps = range(-(-rows // count))
            outputs = [session.sample(range(count), logits.clone()) for _ in steps]
        except (Exception, SystemExit) as error:
            with suppress(Exception, SystemExit):
                self._close_session()
            raise _raised(error) from error
        answers = [read_output(output, *logits.shape) for output in outputs]
        for read in answers:
            if len(read.ids) != count:
                raise SubjectError(f"{count} rows gave {len(read.ids)} ids: {read.form}")
        return np.concatenate([read.ids for read in answers])[:rows]

    def _close_session(self) -> None:
        """Let go of the session whose case is done."""
        before, self._session = self._session, None
        if before is not None:
            before[1].close()


class _Watched:
    """A kernel under observation: what it got, what it gave and what it changed.

    The pipeline gets ids that it can work with even if the kernel's are out of range, so that one
    fault is reported once.
    """

    def __init__(
        self, kernel: Kernel, metadata: SamplingMetadata, layout: Layout, *, watch: bool
    ) -> None:
        self._kernel, self._layout, self._watch = kernel, layout, watch
        self._temperature = metadata.temperature
        self.own: Bool[np.ndarray, " num_tokens"] | None = None
        self.ids: Int64[np.ndarray, " num_tokens"] | None = None
        self.processed: Tensor | None = None
        self.changed = False
        self.form = ""

    def __call__(self, logits: Tensor, rows: Rows) -> Drawn:
        """Hand the logits over in the case's layout, and record what happens."""
        handed = lay_out(logits, self._layout)
        before = handed.clone() if self._watch else handed
        try:
            result = self._kernel.draw(handed, rows)
        except (Exception, SystemExit) as error:
            raise _raised(error) from error
        self.changed = self._watch and not _same_bits(before, handed)
        shape = (len(logits),)
        read = read_drawn(result, *logits.shape)
        self.ids, self.processed, self.form = read.ids, read.processed, read.form
        self.own = self._owned(rows)
        safe = self.ids if self.ids.shape == shape else np.zeros(shape, np.int64)
        usable = torch.from_numpy(safe.clip(0, logits.shape[1] - 1)).to(logits.device)
        return Drawn(usable, self.processed)

    def _owned(self, rows: Rows) -> Bool[np.ndarray, " num_tokens"]:
        """Return which rows the kernel answers for: greedy ones only if it folds them."""
        folded = rows.temperature is not None and bool((rows.temperature == 0).any())
        if folded or self._temperature is None:
            return np.full(len(rows.seed), folded)
        return self._temperature.cpu().numpy() >= GREEDY_EPSILON


def _same_bits(before: Tensor, after: Tensor) -> bool:
    """Compare bit for bit, so that a NaN equals itself."""
    bits = torch.int32 if before.element_size() == 4 else torch.int16
    return torch.equal(before.contiguous().view(bits), after.contiguous().view(bits))


def _raised(error: BaseException) -> Exception:
    """Return what the backend raised, in words; `sys.exit` in a backend is an error like others.

    What a program on stdio did against the wire stays what it is: nobody knows what it meant.
    """
    if isinstance(error, (SubjectError, WireFault)):
        return error
    refused = isinstance(error, ValueError | TypeError)
    return SubjectError(f"{type(error).__name__}: {error}", refused=refused)
