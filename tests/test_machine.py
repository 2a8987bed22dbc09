"""State machines: right engines and batches pass whatever happens, wrong ones of the bank are found."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from refsampler.backends.native import NativeKernel
from refsampler.backends.protocol import Feature
from refsampler.backends.reference import ReferenceEngine, ReferenceSession
from refsampler.batch import PersistentBatch
from refsampler.conformance.designed.drafted import Drafted
from refsampler.conformance.examples import same_everywhere
from refsampler.conformance.faults.registry import fault
from refsampler.conformance.faults.row_mixing import _CountingBatch, _StaleMasks
from refsampler.conformance.machine import machine
from refsampler.conformance.session_cases import Newcomer
from refsampler.conformance.stateful.batch_machine import batch_machine
from refsampler.conformance.stateful.journal import Added, Call, Stepped
from refsampler.conformance.stateful.step_judge import differs_alone
from refsampler.conformance.subject import OpenSubject, SubjectError
from refsampler.conformance.threads import one_thread
from refsampler.request import PLACEHOLDER
from tests.shapes import unchecked

TestReference = machine(ReferenceEngine).TestCase
TestReference.settings = settings(max_examples=8, stateful_step_count=20)
TestKernel = machine(NativeKernel, waiting=False).TestCase
TestKernel.settings = settings(max_examples=4, stateful_step_count=20)


def found(made, examples, steps=20):
    """What the machine says of a wrong subject; empty if it finds nothing in so many examples."""
    chosen = settings(
        derandomize=True,
        max_examples=examples,
        stateful_step_count=steps,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    with same_everywhere(), one_thread(), unchecked():
        try:
            run_state_machine_as_test(made, settings=chosen)
        except (AssertionError, SubjectError) as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("B026", "penalty.history"),
        ("B043", "logprobs."),
        ("B070", "seed.batch"),
        ("B098", ""),
        ("B104", "penalty.history"),
    ],
)
def test_a_fault_of_the_bank_is_found_in_40_examples(name, named):
    make = fault(name).make
    assert make is not None
    said = found(machine(make), 40)
    assert named in said
    # what is asked of a session opened for the step comes out right
    assert said.endswith("it is what this one keeps")


@pytest.mark.parametrize(
    ("batch", "field"), [(_StaleMasks, "allowed_token_ids_mask"), (_CountingBatch, "min_p")]
)
def test_a_wrong_batch_is_found_in_200_examples(batch, field):
    assert field in found(batch_machine(lambda: batch(6)), 200, 30)


class _AcceptsAll(ReferenceSession):
    def verify(self, ids, drafts, draft_probs, logits):
        verified = super().verify(ids, drafts, draft_probs, logits)
        emitted = verified.token_ids.clone()
        for row, tokens in enumerate(drafts):
            emitted[row] = PLACEHOLDER
            emitted[row, : len(tokens) + 1] = torch.tensor([*tokens, 0])
        return replace(verified, token_ids=emitted)


class AcceptsAll(ReferenceEngine):
    """Takes every draft for accepted."""

    def open(self, vocab, seed):
        return _AcceptsAll(vocab, seed)


def test_drafts_that_no_noise_accepts_are_found():
    said = found(machine(AcceptsAll), 20)
    assert "spec.history" in said
    assert "is followed by another" in said
    silent = AcceptsAll()
    silent.capabilities = replace(
        silent.capabilities,
        features=silent.capabilities.features - {Feature.SPECULATIVE, Feature.DRAFT},
    )
    assert found(machine(silent), 3) == ""


class _NobodyWaits(ReferenceSession):
    def sample(self, ids, logits):
        running = {name for name in self._batch.rows if name is not None}
        if running != {*ids}:
            raise RuntimeError(f"{running - {*ids}} would have to wait")
        return super().sample(ids, logits)


class NobodyWaits(ReferenceEngine):
    """An engine that cannot leave a running request out of a step."""

    def __init__(self):
        super().__init__()
        features = self.capabilities.features - {Feature.SPECULATIVE, Feature.DRAFT}
        self.capabilities = replace(self.capabilities, features=features)

    def open(self, vocab, seed):
        return _NobodyWaits(vocab, seed)


def test_nobody_waits_where_the_author_says_so():
    assert "would have to wait" in found(machine(NobodyWaits), 20)
    assert found(machine(NobodyWaits, waiting=False), 3) == ""


class _SomeSeeds(ReferenceSession):
    one_in = 1

    def sample(self, ids, logits):
        output = super().sample(ids, logits)
        seed = self._batch.requests[0].params.seed
        assert seed is not None
        if len(ids) == 1 or seed % self.one_in:
            return output
        return replace(output, sampled_token_ids=63 - output.sampled_token_ids)


@pytest.mark.parametrize(("one_in", "differs"), [(2, True), (40, False)])
def test_seeded_ids_that_hardly_ever_differ_are_no_difference(one_in, differs):
    class Odd(ReferenceEngine):
        def open(self, vocab, seed):
            session = _SomeSeeds(vocab, seed)
            session.one_in = one_in
            return session

    subject = OpenSubject(Odd(), 1)
    seeded = Newcomer("seeded", (3, 9, 20, 41), seed=7)
    plain = Newcomer("plain", (3, 9, 20, 41), greedy=True)
    rows = [seeded.row, plain.row]
    parts = tuple(Drafted(asked, (), (recipe,)) for recipe, asked in rows)
    journal: list[Call] = [Added(0, rows[0][1]), Added(1, rows[1][1]), Stepped(64, (0, 1), parts)]
    # of 64 fresh seeds about 32 differ, or about 2
    assert differs_alone(subject, 64, journal, 0) is differs
    subject.capabilities = replace(
        subject.capabilities, features=subject.capabilities.features | {Feature.BITWISE}
    )
    # who promises bits is held to the one difference that was seen
    assert differs_alone(subject, 64, journal, 0)


def test_a_batch_over_too_few_ids_is_refused():
    with pytest.raises(ValueError, match="vocab_size = 5 is refused: allowed is 6 or more"):
        batch_machine(lambda: PersistentBatch(5))
