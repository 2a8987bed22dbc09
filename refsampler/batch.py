"""PersistentBatch: requests that enter, move and leave while the batch lives on.

Rows change at once; what changed reaches the processors at `commit`, as one BatchUpdate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from refsampler.batch_update import AddedRequest, BatchUpdate, Direction, MovedRequest
from refsampler.metadata import SamplingMetadata, generators_of
from refsampler.processors import EngineConfig, LogitsProcessor, build_logitsprocs
from refsampler.request import Request, ThinkingMarkers
from refsampler.thinking import ThinkingBudget
from refsampler.validation import ParameterError

__all__ = ["BatchUpdateBuilder", "PersistentBatch", "Preempted"]


@dataclass(frozen=True, slots=True)
class Preempted:
    """A request outside the batch, with all it needs to go on (clause `history.preempt`).

    Attributes:
        request_id: the caller's name for it.
        request: parameters, prompt, everything generated so far, and the drafts.
        generator: where its noise stream stands; None without a seed.
        steps: ids it has drawn.

    """

    request_id: int
    request: Request
    generator: torch.Generator | None
    steps: int


@dataclass(slots=True, eq=False)
class _Running:
    """One request in the batch; compared by identity, `output` is live."""

    request_id: int
    request: Request
    output: list[int]
    generator: torch.Generator | None
    steps: int

    def snapshot(self) -> Request:
        """Return the request as it stands now."""
        return replace(self.request, output=tuple(self.output))

    def added_to(self, row: int) -> AddedRequest:
        """Return what processors learn of it when it takes a row."""
        return AddedRequest(row, self.request.params, self.request.prompt, self.output)


class BatchUpdateBuilder:
    """Collects the changes of one step as an engine makes them: removals before everything else.

    An added request takes the lowest row that was freed; what it takes is no longer `removed`.
    """

    def __init__(self) -> None:
        """Start a step without changes."""
        self._removed: list[int] = []
        self._read = False
        self._added: list[AddedRequest] = []
        self._moved: list[MovedRequest] = []

    def remove(self, row: int) -> None:
        """Register that the request in `row` left.

        Raises:
            RuntimeError: the removed rows of this step have been read.

        """
        if self._read:
            msg = f"removal of row {row} is refused: allowed only before the removed rows are read"
            raise RuntimeError(msg)
        self._removed.append(row)

    @property
    def removed(self) -> tuple[int, ...]:
        """The rows that are still free, descending."""
        self._read = True
        return tuple(sorted(self._removed, reverse=True))

    def pop_removed(self) -> int | None:
        """Take the lowest free row; None if there is none, which reads nothing."""
        if not self._removed:
            return None
        lowest = self.removed[-1]
        self._removed.remove(lowest)
        return lowest

    def add(self, request: AddedRequest) -> None:
        """Register a request that took a row."""
        self._added.append(request)

    def move(self, source: int, target: int, direction: Direction) -> None:
        """Register a move or a swap."""
        self._moved.append(MovedRequest(source, target, direction))

    def build(self, batch_size: int) -> BatchUpdate | None:
        """Return the update, or None if nothing changed."""
        update = BatchUpdate(batch_size, self.removed, tuple(self._added), tuple(self._moved))
        return update if update.removed or update.added or update.moved else None


class PersistentBatch:
    """The rows of an engine over many steps (clause `batch.state`).

    Operations may come in any order between two commits.  A removed request leaves a free row
    that the next added one takes; `commit` fills what is still free from the end.

    Args:
        vocab_size: V, the width of the logits.
        device: where tensors and generators live.
        custom: processors beside the built-in ones (ValueError when speculative).
        thinking: markers of the model's thinking section.
        max_num_reqs: most requests at a time.
        speculative: whether drafts are verified (clause `spec.processors`).

    """

    def __init__(
        self,
        vocab_size: int,
        *,
        device: torch.device | str = "cpu",
        custom: Sequence[type[LogitsProcessor]] = (),
        thinking: ThinkingMarkers | None = None,
        max_num_reqs: int = 1024,
        speculative: bool = False,
    ) -> None:
        """Make the processors; the batch is empty."""
        if thinking is not None:
            thinking.verify(vocab_size)
        self.vocab_size, self.max_num_reqs = vocab_size, max_num_reqs
        self.device, self.thinking = torch.device(device), thinking
        config = EngineConfig(vocab_size, max_num_reqs, speculative=speculative)
        self._processors = build_logitsprocs(config, self.device, custom=custom)
        self._rows: list[_Running | None] = []
        self._committed: Sequence[_Running] = ()

    @property
    def rows(self) -> tuple[int | None, ...]:
        """The request id of each row; None where a row is free until it is filled."""
        return tuple(None if one is None else one.request_id for one in self._rows)

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests in row order, as they stand now; a fresh batch of them is equivalent."""
        return tuple(one.snapshot() for one in self._rows if one is not None)

    def add(self, request_id: int, request: Request) -> int:
        """Admit a request and return its row: the lowest free one, else one more.

        Raises:
            ValueError: the id is taken, the batch is full, or the request is out of range or
                refused by a processor; nothing has changed then (clause `input.validated`).

        """
        generator = generators_of([request], self.device).get(0)
        return self._admit(request_id, request, generator, steps=0)

    def remove(self, request_id: int) -> None:
        """Take a request out; its row is free."""
        self._rows[self._row_of(request_id)] = None

    def preempt(self, request_id: int) -> Preempted:
        """Take a request out, to be resumed later."""
        running = self._running(request_id)
        self.remove(request_id)
        return Preempted(request_id, running.snapshot(), running.generator, running.steps)

    def resume(self, preempted: Preempted) -> int:
        """Admit a preempted request as it left and return its row (clause `history.preempt`)."""
        generator = preempted.generator
        # a copy: the preempted request is a value, however often it is resumed
        copy = None if generator is None else generator.clone_state()
        return self._admit(preempted.request_id, preempted.request, copy, preempted.steps)

    def move(self, source: int, target: int) -> None:
        """Move the request of row `source` to the free row `target`."""
        self._check_rows(source)
        if not 0 <= target < len(self._rows) or self._rows[target] is not None:
            raise ParameterError("target", target, "a free row")
        self._rows[source], self._rows[target] = None, self._rows[source]

    def swap(self, i: int, j: int) -> None:
        """Exchange the requests of two rows."""
        self._check_rows(i, j)
        self._rows[i], self._rows[j] = self._rows[j], self._rows[i]

    def condense(self) -> None:
        """Fill the free rows, lowest first, from the end."""
        while None in self._rows:
            last = self._rows.pop()
            if last is not None:
                self._rows[self._rows.index(None)] = last

    def set_drafts(self, request_id: int, drafts: Sequence[int]) -> None:
        """Schedule drafts behind the request's output."""
        running = self._running(request_id)
        request = replace(running.request, drafts=tuple(drafts))
        request.verify(self.vocab_size)
        running.request = request

    def accept(self, request_id: int, tokens: Sequence[int]) -> None:
        """Append the ids that a step produced; the drafts are used up."""
        running = self._running(request_id)
        replace(running.request, output=tuple(tokens)).verify(self.vocab_size)
        running.output.extend(tokens)
        running.steps += len(tokens)
        running.request = replace(running.request, drafts=())

    def commit(self) -> SamplingMetadata:
        """Settle the rows, tell the processors once what changed, and return the step's metadata.

        Outputs in the metadata are live; every other field is this step's.
        """
        self.condense()
        rows = [one for one in self._rows if one is not None]
        self._processors.update_state(_update(self._committed, rows))
        self._committed = rows
        requests = [one.request for one in rows]
        outputs = [one.output for one in rows]
        return SamplingMetadata.assemble(
            requests,
            outputs,
            self.vocab_size,
            logitsprocs=self._processors,
            generators={
                row: one.generator for row, one in enumerate(rows) if one.generator is not None
            },
            thinking=ThinkingBudget.of(requests, self.thinking, outputs),
            steps=[one.steps for one in rows],
            device=self.device,
        )

    def _admit(
        self, request_id: int, request: Request, generator: torch.Generator | None, steps: int
    ) -> int:
        """Check everything, then take a row."""
        if request_id in self.rows:
            raise ParameterError("request_id", request_id, "an id that is not running")
        if len(self.requests) >= self.max_num_reqs:
            allowed = f"at most {self.max_num_reqs} requests at a time"
            raise ParameterError("request_id", request_id, allowed)
        request.verify(self.vocab_size)
        self._processors.validate([request.params])
        ThinkingBudget.of([request], self.thinking)
        running = _Running(request_id, request, list(request.output), generator, steps)
        row = self._rows.index(None) if None in self._rows else len(self._rows)
        self._rows[row : row + 1] = [running]
        return row

    def _row_of(self, request_id: int) -> int:
        if request_id not in self.rows:
            raise ParameterError("request_id", request_id, f"the running ids in {self.rows}")
        return self.rows.index(request_id)

    def _running(self, request_id: int) -> _Running:
        running = self._rows[self._row_of(request_id)]
        assert running is not None
        return running

    def _check_rows(self, *rows: int) -> None:
        for row in rows:
            if not 0 <= row < len(self._rows) or self._rows[row] is None:
                raise ParameterError("row", row, "a row that holds a request")


def _update(before: Sequence[_Running], after: Sequence[_Running]) -> BatchUpdate | None:
    """Return the update that leads from one arrangement to the next, whatever happened between.

    A request that came and went between two commits leaves no trace.
    """
    builder = BatchUpdateBuilder()
    rows: list[_Running | None] = [one if one in after else None for one in before]
    for row, one in enumerate(rows):
        if one is None:
            builder.remove(row)
    for one in after:
        if one not in before:
            freed = builder.pop_removed()
            row = len(rows) if freed is None else freed
            rows[row : row + 1] = [one]
            builder.add(one.added_to(row))
    for target, wanted in enumerate(after):
        source, occupant = rows.index(wanted), rows[target]
        if source != target:
            direction = Direction.UNIDIRECTIONAL if occupant is None else Direction.SWAP
            rows[source], rows[target] = occupant, wanted
            builder.move(source, target, direction)
    return builder.build(len(after))
