"""Fuzzing: batches are legal and dense in pairs, wrong samplers are found, made small and found again."""

import math
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

from refsampler.backends.native import NativeKernel
from refsampler.backends.protocol import Feature
from refsampler.backends.registry import resolve
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, decode_case, encode_case
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.cli import main
from refsampler.conformance.faults.registry import fault
from refsampler.conformance.fuzz.asks import asks_of
from refsampler.conformance.fuzz.compact import compacted
from refsampler.conformance.fuzz.drafted import drafted
from refsampler.conformance.fuzz.found import FoundBook
from refsampler.conformance.fuzz.hunt import Hunted, hunt_one, markdown, read_matrix, share
from refsampler.conformance.fuzz.law import LOG_THRESHOLD, LawEvidence, merged_log_e
from refsampler.conformance.fuzz.lifecycles import lifecycle
from refsampler.conformance.fuzz.loop import fuzz
from refsampler.conformance.fuzz.oddities import ends, moded
from refsampler.conformance.fuzz.sketch import MODES, Sketch, pairs_in, pairs_of
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.strategies import batches
from refsampler.conformance.subject import OpenSubject
from refsampler.params import SamplingParams
from refsampler.request import Request

ASKS = asks_of(frozenset(Feature))


def some_sketches(count, seed):
    rng = Random(seed)
    pairs = pairs_of(tuple(ASKS))
    return [
        Sketch(
            mode=MODES[number % len(MODES)],
            vocab=rng.choice((1, 2, 3, 8, 33, 64)),
            rows=rng.randint(1, 8),
            pair=rng.choice(pairs),
            seed=rng.getrandbits(32),
            asks=ASKS,
        )
        for number in range(count)
    ]


def wrong(name):
    found = fault(name)
    assert found.make is not None
    return OpenSubject(found.make(), 5)


def fuzzed(subject, batches_, *, law=None, until_found=True):
    # no shrinking ends here for want of time, however busy the machine is
    book = FoundBook(ReportWriter(None), subject, shrink_s=math.inf)

    def stop(done):
        return done.batches >= batches_ or (until_found and bool(book.causes))

    return book, fuzz(subject, 5, book, stop=stop, law=law)


def test_every_sketch_is_legal_and_the_same_again():
    for sketch in some_sketches(150, 1):
        case = sketch.case()
        for request in case.requests:
            request.verify(case.logits.vocab)
        assert case.build_logits().shape == (len(case.requests), sketch.vocab)
        assert sketch.case().id == case.id
    assert decode_case(encode_case(case)).id == case.id


def test_300_sketches_let_most_pairs_of_features_meet():
    met = set().union(*(pairs_in(one.case()) for one in some_sketches(300, 2)))
    assert len(met) > 0.9 * len(pairs_of(tuple(ASKS)))
    assert ("greedy", "top-k") not in met


def test_nothing_is_asked_that_was_not_declared():
    asks = asks_of(frozenset({Feature.PENALTIES}))
    assert {"top-k", "repetition"} <= {*asks}
    assert not {"seed", "bias", "logprobs"} & {*asks}


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(batches(vocab=32))
def test_the_example_of_the_documentation(case):
    assert case.build_logits().shape[1] == 32
    for request in case.requests:
        request.verify(32)


def test_compacting_keeps_order_and_two_ids_of_the_background():
    recipe = RowRecipe(base=-8.0, ids=(60, 5), values=(1.0, 2.0))
    params = SamplingParams(allowed_token_ids=(5, 60), logit_bias=((33, 1.0),), logprobs=40)
    case = Case(LogitsRecipe(64, (recipe,)), (Request(params, prompt=(63,), output=(5, -1)),))
    small = compacted(case)
    assert small.logits.vocab == 6  # 0, 5, 33, 60, 62, 63
    assert small.logits.rows[0].ids == (3, 1)
    assert small.requests[0].params.allowed_token_ids == (1, 3)
    assert small.requests[0].params.logit_bias == ((2, 1.0),)
    assert small.requests[0].params.logprobs == 6
    assert small.requests[0].prompt == (5,)
    assert small.requests[0].output == (1, -1)
    assert compacted(small) == small


@pytest.mark.parametrize(
    ("name", "clauses"),
    [
        ("B037", {"batch.isolation", "seed.batch"}),
        ("B093", {"penalty.repetition"}),
        ("B114", {"top-p.keep"}),
        ("B165", {"seed.batch"}),
    ],
)
def test_a_wrong_sampler_is_found_made_small_and_found_again(name, clauses):
    book, done = fuzzed(wrong(name), 400)
    assert not done.errors
    named = [
        one for one in book.causes.values() if {one.cause.clause, *one.finding.candidates} & clauses
    ]
    assert named, book.causes
    first = named[0]
    assert first.shrunk
    assert first.case.logits.vocab <= 16
    copies = name == "B114"  # an id that never comes takes many rows to miss
    assert copies or len(first.case.requests) <= 3
    again = judge_case(wrong(name), first.check, first.case).findings
    blamed = {clause for one in again for clause in (one.clause, *one.candidates)}
    assert first.cause.clause in blamed


def test_findings_of_one_cause_are_counted_and_not_listed_again():
    book, _ = fuzzed(wrong("B053"), 40, until_found=False)
    assert sum(book.seen.values()) > len(book.causes)
    assert {*book.causes} == {*book.seen}


@pytest.mark.parametrize("name", ["native", "reference"])
def test_a_right_sampler_shows_nothing(name):
    """Exact, or beyond 50 nats; the law is charged 1.1e-10 (LOG_THRESHOLD)."""
    subject = OpenSubject(resolve(name), 5)
    law = LawEvidence(subject.capabilities)
    book, done = fuzzed(subject, 60, law=law)
    assert not book.causes
    assert not done.errors
    assert done.batches >= 60
    assert not law.failed


def test_no_batch_has_more_logits_than_the_backend_takes():
    """Such a kernel refuses what others get."""
    most = 2**10

    class Narrow(NativeKernel):
        def __init__(self) -> None:
            super().__init__()
            self.capabilities = replace(self.capabilities, max_elements=most)

        def draw(self, logits, rows):
            assert logits.numel() <= most, f"{tuple(logits.shape)}"
            return super().draw(logits, rows)

    book, done = fuzzed(OpenSubject(Narrow(), 5), 60, until_found=False)
    assert not book.causes
    assert not done.errors
    assert done.batches >= 60


@pytest.mark.statistical
def test_what_is_nearly_certain_is_asked_until_its_share_is_spent():
    subject = OpenSubject(resolve("native"), 5)
    book = FoundBook(ReportWriter(None), subject)
    done = fuzz(subject, 3, book, stop=lambda done: done.batches >= 50, share=1e-15)
    # one chunk of each, and then only what is compared exactly
    assert 0 < done.by_channel["batches"] <= 32
    assert done.by_channel.get("seeds", 0) <= 3
    assert done.by_channel["noise ends"] >= 15


def test_evidence_of_unlike_rows_shows_a_wrong_law_and_spares_a_right_one():
    """Alpha is 1.1e-10 at LOG_THRESHOLD; the shares of two shards add up bet by bet."""
    capabilities = resolve("native").capabilities
    rng = np.random.default_rng(3)
    recipe = RowRecipe(ids=(0, 1, 2), values=(0.0, -0.5, -1.0), base=-math.inf)
    case = Case(LogitsRecipe(4, (recipe,) * 32), (Request(SamplingParams()),) * 32)
    expected = Expected.of(case, capabilities.semantics)
    right = np.exp(expected.row(0).least)
    cold = right**2 / (right**2).sum()
    laws = [LawEvidence(capabilities) for _ in range(3)]
    for probs, law in zip((right, cold, cold), laws, strict=True):
        for _ in range(64):
            law.take(case, expected, rng.choice(4, 32, p=probs))
        law.look()
    assert math.log(5e9) < LOG_THRESHOLD
    assert not laws[0].failed
    assert laws[0].draws == 2048
    both = merged_log_e([one.components for one in laws[1:]])
    assert both > max(one.largest for one in laws[1:]) + 5
    assert laws[1].failed


def test_seeded_rows_and_open_supports_are_no_evidence():
    capabilities = resolve("native").capabilities
    recipe = RowRecipe(ids=(0, 1), values=(0.0, 0.0), base=-math.inf)
    asked = replace(Request(SamplingParams()), params=SamplingParams(seed=3))
    case = Case(LogitsRecipe(4, (recipe,) * 8), (asked,) * 8)
    law = LawEvidence(capabilities)
    law.take(case, Expected.of(case, capabilities.semantics), np.zeros(8, np.int64))
    law.look()
    assert law.draws == 0


def test_the_command_keeps_what_it_found_and_replay_shows_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["fuzz", "refsampler.conformance.faults.subjects:B093", "--until-failure"]
    command += ["--seed", "4", "--in-process", "--time-budget", "60"]
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code == 1, ended.output
    assert "penalty.repetition" in ended.output
    case = ended.output.split("refsampler replay ")[1].split()[0]
    again = CliRunner().invoke(main, ["replay", case, "--in-process"])
    assert again.exit_code == 1, again.output
    assert ClauseId("penalty.repetition") in again.output


def test_the_command_says_that_nothing_was_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(main, ["fuzz", "native", "--seed", "4", "--time-budget", "1.5"])
    assert ended.exit_code == 0, ended.output
    assert "nothing wrong was seen" in ended.output
    assert "generation" in ended.output


def test_lifecycles_and_drafts_are_legal_and_the_same_again():
    for seed in range(30):
        for case in (lifecycle(seed, ASKS), drafted(seed, ASKS), moded(seed, ASKS), ends(seed)):
            for request in case.requests:
                request.verify(case.logits.vocab)
            assert decode_case(encode_case(case)).id == case.id
        assert lifecycle(seed, ASKS).id == lifecycle(seed, ASKS).id
    moved = lifecycle(3, ASKS)
    names = [name for step in moved.steps for name in step.ids]
    assert len(names) == len(moved.requests)
    assert len(set(names)) < len(names)


@pytest.mark.parametrize("name", ["reference-engine", "native-verifier"])
def test_right_lifecycles_and_drafts_show_nothing(name):
    """Exact walks and supports; the flat rows of seeds are charged 3e-33."""
    subject = OpenSubject(resolve(name), 6)
    book, done = fuzzed(subject, 60)
    assert not book.causes
    assert not done.errors
    assert len(done.by_channel) >= 3


def test_the_hunt_finds_a_fault_of_sessions_and_counts_it():
    found = hunt_one("B107", 60.0, 3)
    assert found.clause == "batch.state"
    assert found.named
    page = markdown((found, Hunted(id="B001", kind="row-mixing")), {"seed": "3"})
    assert share((found, Hunted(id="B001", kind="row-mixing"))) == 0.5
    assert "| row-mixing | 1 | 2 |" in page
    assert "**missed**" in page


def test_what_is_hunted_is_what_exact_checks_catch():
    matrix = Path(__file__).parents[1] / "reports" / "audit" / "quick.json"
    names = read_matrix(matrix)
    assert {"B114", "B107", "B093"} <= {*names}
    assert not {"temperature-1", "tail-dropped"} & {*names}
