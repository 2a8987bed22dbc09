"""The persistent batch: rows, updates, and equality with a freshly built batch (`batch.state`)."""

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from refsampler.batch import BatchUpdateBuilder, PersistentBatch
from refsampler.batch_update import AddedRequest, BatchUpdate, Direction, MovedRequest
from refsampler.conformance.stateful.batch_machine import batch_machine
from refsampler.params import SamplingParams
from refsampler.per_request import PerRequestProcessor
from refsampler.processors import LogitsProcessor
from refsampler.request import PLACEHOLDER, Request, ThinkingMarkers
from refsampler.sampler import Sampler
from refsampler.validation import ParameterError

V = 6
MARKERS = ThinkingMarkers(start=(1,), end=(2, 3))
PLAIN = Request(prompt=(4,))


def asking(**params):
    return Request(SamplingParams(**params))


class Recorder(LogitsProcessor):
    """Remembers the updates; refuses min_p = 1."""

    seen: list[BatchUpdate | None]

    def __init__(self, config, device, pin_memory):
        super().__init__(config, device, pin_memory)
        self.seen = []

    @classmethod
    def validate_params(cls, params):
        if params.min_p == 1:
            raise ParameterError("min_p", params.min_p, "less than 1 here")

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        self.seen.append(batch_update)

    def apply(self, logits):
        return logits


def updates(batch):
    (recorder,) = [
        one for one in batch.commit().logitsprocs.argmax_invariant if isinstance(one, Recorder)
    ]
    return recorder.seen


def filled(count, **settings):
    batch = PersistentBatch(V, **settings)
    for request_id in range(count):
        batch.add(request_id, PLAIN)
    return batch


def test_a_request_takes_the_lowest_free_row_else_one_more():
    batch = filled(4)
    batch.remove(3)
    batch.remove(1)
    assert batch.rows == (0, None, 2, None)
    assert [batch.add(n, PLAIN) for n in (10, 11, 12)] == [1, 3, 4]
    assert batch.rows == (0, 10, 2, 11, 12)


def test_free_rows_are_filled_from_the_end():
    batch = filled(6)
    for request_id in (0, 2, 5):
        batch.remove(request_id)
    batch.condense()
    assert batch.rows == (4, 1, 3)


def test_move_and_swap():
    batch = filled(4)
    batch.remove(1)
    batch.move(3, 1)
    assert batch.rows == (0, 3, 2, None)
    batch.swap(0, 2)
    assert batch.rows == (2, 3, 0, None)


def test_an_update_names_only_what_changed():
    batch = filled(4, custom=(Recorder,))
    new = Request(prompt=(5,), output=(2,))
    batch.commit()
    batch.remove(1)
    batch.remove(3)
    batch.add(9, new)
    batch.commit()
    batch.remove(0)
    batch.commit()
    batch.swap(0, 1)
    batch.commit()
    batch.commit()
    seen = updates(batch)
    added = tuple(AddedRequest(row, PLAIN.params, (4,), []) for row in range(4))
    assert seen == [
        BatchUpdate(4, added=added),
        # 9 took the freed row 1, so only row 3 is removed
        BatchUpdate(3, removed=(3,), added=(AddedRequest(1, new.params, (5,), [2]),)),
        BatchUpdate(2, removed=(0,), moved=(MovedRequest(2, 0, Direction.UNIDIRECTIONAL),)),
        BatchUpdate(2, moved=(MovedRequest(1, 0, Direction.SWAP),)),
        None,
        None,
    ]


def test_what_came_and_went_between_two_steps_leaves_no_trace():
    batch = filled(2, custom=(Recorder,))
    batch.commit()
    batch.add(7, asking(min_p=0.5))
    batch.swap(0, 2)
    batch.swap(0, 2)
    batch.remove(7)
    assert updates(batch)[-1] is None
    assert batch.rows == (0, 1)


def test_a_removed_request_that_comes_back_is_a_new_one():
    batch = filled(1, custom=(Recorder,))
    batch.accept(0, [5])
    batch.commit()
    batch.remove(0)
    batch.add(0, PLAIN)
    assert updates(batch)[-1] == BatchUpdate(1, added=(AddedRequest(0, PLAIN.params, (4,), []),))


def test_builder_gives_the_lowest_freed_row_and_lists_the_rest_descending():
    builder = BatchUpdateBuilder()
    for row in (2, 5, 0):
        builder.remove(row)
    assert builder.pop_removed() == 0
    assert builder.removed == (5, 2)
    assert builder.build(3) == BatchUpdate(3, removed=(5, 2))


@pytest.mark.parametrize("read", [lambda b: b.removed, lambda b: b.pop_removed()])
def test_builder_refuses_a_removal_after_the_removed_rows_were_read(read):
    builder = BatchUpdateBuilder()
    builder.remove(1)
    read(builder)
    with pytest.raises(RuntimeError, match="removal of row 2 is refused"):
        builder.remove(2)


def test_builder_without_removals_has_nothing_to_read():
    builder = BatchUpdateBuilder()
    assert builder.pop_removed() is None
    builder.remove(0)
    assert builder.removed == (0,)
    assert BatchUpdateBuilder().build(2) is None


@pytest.mark.parametrize(
    ("request_id", "request_", "message"),
    [
        (0, PLAIN, "request_id = 0 is refused: allowed is an id that is not running"),
        (9, Request(prompt=(6,)), "prompt = 6 is refused: allowed is ids from 0 to 5"),
        (9, asking(eos_token_id=6), "eos_token_id = 6 is refused"),
        (9, asking(min_p=1.0), "min_p = 1.0 is refused: allowed is less than 1 here"),
    ],
)
def test_a_refused_request_changes_nothing(request_id, request_, message):
    batch = filled(2, custom=(Recorder,))
    batch.commit()
    with pytest.raises(ParameterError, match=message):
        batch.add(request_id, request_)
    assert batch.rows == (0, 1)
    assert updates(batch)[-1] is None


def test_a_full_batch_refuses_one_more():
    batch = filled(2, max_num_reqs=2)
    with pytest.raises(ParameterError, match="allowed is at most 2 requests at a time"):
        batch.add(9, PLAIN)
    batch.remove(0)
    assert batch.add(9, PLAIN) == 0


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda b: b.remove(9), r"request_id = 9 is refused: allowed is the running ids in \(0, 1"),
        (lambda b: b.preempt(9), "request_id = 9 is refused"),
        (lambda b: b.accept(9, [1]), "request_id = 9 is refused"),
        (lambda b: b.accept(0, [1, 6]), "output = 6 is refused: allowed is ids from -1 to 5"),
        (lambda b: b.set_drafts(0, [1, 6]), "drafts = 6 is refused: allowed is ids from -1 to 5"),
        (lambda b: b.swap(0, 2), "row = 2 is refused: allowed is a row that holds a request"),
        (lambda b: b.swap(-1, 0), "row = -1 is refused"),
        (lambda b: b.move(0, 1), "target = 1 is refused: allowed is a free row"),
        (lambda b: b.move(0, 2), "target = 2 is refused"),
    ],
)
def test_an_operation_that_means_nothing_is_refused_and_changes_nothing(operation, message):
    batch = filled(2)
    batch.set_drafts(0, [3])
    before = (batch.rows, batch.requests)
    with pytest.raises(ParameterError, match=message):
        operation(batch)
    assert (batch.rows, batch.requests) == before


def test_outputs_are_live_and_accepting_uses_up_the_drafts():
    batch = filled(2)
    batch.set_drafts(1, [3, 5])
    first = batch.commit()
    assert first.spec_token_ids is not None
    assert [list(drafts) for drafts in first.spec_token_ids] == [[], [3, 5]]
    batch.accept(1, [3, 5, 1])
    batch.accept(0, [PLACEHOLDER])
    assert first.output_token_ids == [[PLACEHOLDER], [3, 5, 1]]
    assert first.steps == [0, 0]
    second = batch.commit()
    assert second.spec_token_ids is None
    assert second.steps == [1, 3]


def test_min_tokens_sees_the_live_output():
    batch = PersistentBatch(V)
    batch.add(0, asking(min_tokens=1, eos_token_id=5, temperature=0))
    logits = torch.tensor([[0.0, 0, 1, 0, 0, 9]])
    assert Sampler()(logits, batch.commit()).sampled_token_ids.item() == 2
    batch.accept(0, [2])
    assert Sampler()(logits, batch.commit()).sampled_token_ids.item() == 5


def test_speculative_decoding_refuses_at_admission():
    batch = PersistentBatch(V, speculative=True)
    with pytest.raises(ParameterError, match=r"min_p = 0.5 is refused: .* speculative"):
        batch.add(0, asking(min_p=0.5))
    assert batch.rows == ()
    with pytest.raises(ParameterError, match="custom = 'Recorder' is refused"):
        PersistentBatch(V, speculative=True, custom=(Recorder,))


def nothing(_batch, _step):
    """Leave the batch as it is."""


def drawn(batch, steps, disturb=nothing):
    """Let request 0, which is seeded, and what runs beside it draw; return its ids."""
    ids = []
    for step in range(steps):
        disturb(batch, step)
        metadata = batch.commit()
        row = batch.rows.index(0)
        sampled = Sampler()(torch.zeros(len(batch.rows), V), metadata).sampled_token_ids
        ids.append(int(sampled[row]))
        batch.accept(0, [ids[-1]])
    return ids


def alone():
    batch = PersistentBatch(V)
    batch.add(0, asking(seed=7, frequency_penalty=0.5))
    return batch


def test_preempting_and_resuming_changes_no_id():
    def preempt(batch, step):
        if step % 3 == 1:
            preempted = batch.preempt(0)
            batch.add(100 + step, asking(seed=step))
            batch.commit()
            batch.resume(preempted)

    undisturbed = drawn(alone(), 12)
    assert len(set(undisturbed)) > 2
    assert drawn(alone(), 12, preempt) == undisturbed


def test_thinking_sees_the_live_output():
    batch = PersistentBatch(V, thinking=ThinkingMarkers((1,), (2,)))
    params = SamplingParams(thinking_token_budget=1, temperature=0)
    batch.add(0, Request(params, prompt=(1,)))
    logits = torch.tensor([[9.0, 0, 0, 0, 0, 0]])
    seen = []
    for _ in range(3):
        seen.append(int(Sampler()(logits, batch.commit()).sampled_token_ids))
        batch.accept(0, seen[-1:])
    assert seen == [0, 2, 0]


def test_a_preempted_request_is_a_value():
    batch = alone()
    drawn(batch, 2)
    batch.set_drafts(0, [4])
    before = batch.requests
    preempted = batch.preempt(0)
    tails = []
    for _ in range(2):
        batch.resume(preempted)
        assert batch.requests == before
        assert batch.commit().steps == [2]
        tails.append(drawn(batch, 6))
        batch.remove(0)
    assert tails[0] == tails[1]


def test_neighbours_that_come_and_go_change_no_seeded_id():
    def crowd(batch, step):
        batch.add(100 + step, asking(seed=step, top_k=2))
        batch.swap(0, len(batch.rows) - 1)
        if step > 2:
            batch.remove(98 + step)

    assert drawn(alone(), 12, crowd) == drawn(alone(), 12)


class Count(PerRequestProcessor):
    """Adds the lengths of prompt and output where top_k is set."""

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        def count(prompt, output, row: Tensor) -> Tensor:
            return row + 16 * len(prompt) + len(output)

        return count if params.top_k else None


class Scale(PerRequestProcessor):
    """Doubles the logits where a seed is set: the argmax stays."""

    def is_argmax_invariant(self):
        return True

    def new_req_logits_processor(self, params):
        return None if params.seed is None else lambda _output, row: row * 2


CUSTOM = (Count, Scale)


def whole_batch():
    return PersistentBatch(V, custom=CUSTOM, thinking=MARKERS, max_num_reqs=6)


TestAnySequence = batch_machine(whole_batch, custom=CUSTOM).TestCase
TestAnySequence.settings = settings(max_examples=40, stateful_step_count=30)
