"""Programs on standard input and output: right ones pass, wrong ones fail, hostile ones are an ERROR."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import jsonschema
import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refsampler.backends.native import NativeKernel
from refsampler.backends.process_child import SubjectCrashed, SubjectTimedOut
from refsampler.backends.protocol import Engine
from refsampler.backends.reference import ReferenceEngine, ReferenceSampler
from refsampler.backends.registry import BackendBroken, resolve
from refsampler.backends.stdio import wire
from refsampler.backends.stdio.engine import StdioEngine
from refsampler.backends.stdio.serve import Server
from refsampler.backends.stdio.serving import as_engine
from refsampler.backends.stdio.tensors import output_tensors, read_output_file, write_tensors
from refsampler.backends.stdio.wire import WireFault
from refsampler.clauses import load
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import all_checks
from refsampler.conformance.checks.standing import standing
from refsampler.conformance.plan import make_plan
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.runner import run
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.verdict import Status
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.sampler import SamplerOutput
from tests.wire import hostile

ROOT = Path(__file__).parents[1]
SEED = 11
MESSAGES = 10_000

WRONG = """
import torch
from refsampler.backends.reference import ReferenceEngine, ReferenceSession
class Wrong(ReferenceEngine):
    def open(self, vocab, seed):
        return Session(vocab, seed)
class Session(ReferenceSession):
    def sample(self, ids, logits):
        return super().sample(ids, logits.flip(0))
backend = Wrong()
"""


def served(spec):
    return f"{sys.executable} -m refsampler.backends.stdio.serve {spec}"


def hostile_program(mode, **limits):
    return StdioEngine(f"{sys.executable} -S -E {ROOT / 'tests/wire/hostile.py'} {mode}", **limits)


def broken(engine, *names: str) -> set[str]:
    """Return the clauses that an engine breaks in the cases of some checks."""
    subject = OpenSubject(engine, SEED)
    found = set()
    for check in (one for one in all_checks() if one.name in names):
        cases = tuple(check.cases(subject.capabilities, SEED))
        assert cases, check.name
        for case in cases:
            found |= {str(one.clause) for one in judge_case(subject, check, case).findings}
    return found


def statuses(outcome) -> dict[str, Status]:
    return {str(one.verdict.clause): one.verdict.status for one in outcome.decisions}


SESSION_CHECKS = ("session-constraints", "bad-requests")


def test_a_right_engine_breaks_nothing_over_the_wire():
    engine = StdioEngine(served("reference-engine"))
    assert broken(engine, *SESSION_CHECKS) == set()
    engine.close()


def test_a_wrong_engine_is_caught_over_the_wire(tmp_path, monkeypatch):
    (tmp_path / "wrong_on_the_wire.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    engine = StdioEngine(served("wrong_on_the_wire:backend"))
    assert "batch.state" in broken(engine, "session-moves")
    engine.close()


INDEPENDENT = ("top-k-rows", "top-p-rows", "greedy-argmax", "min-p-rows", "layouts")


@pytest.mark.parametrize("language", ["python", "c++"])
def test_a_program_that_knows_only_the_wire_conforms(language, tmp_path):
    command = f"{sys.executable} {ROOT / 'tests/wire/subject.py'}"
    if language == "c++":
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            pytest.skip("no C++ compiler here")
        command = str(tmp_path / "subject")
        source = str(ROOT / "tests/wire/subject.cpp")
        subprocess.run([compiler, "-O1", "-std=c++17", "-o", command, source], check=True)
    engine = StdioEngine(command)
    assert broken(engine, *INDEPENDENT) == set()
    engine.close()


def test_the_python_program_imports_nothing_of_refsampler():
    assert "import refsampler" not in (ROOT / "tests/wire/subject.py").read_text("utf-8")
    assert len((ROOT / "tests/wire/subject.py").read_text("utf-8").splitlines()) < 70


CREDITED = [(NativeKernel(), 1), (ReferenceSampler(), 2), (ReferenceEngine(), 3)]


@pytest.mark.parametrize(("backend", "level"), CREDITED)
def test_what_is_served_is_credited_with_its_own_level_only(backend, level):
    declared = as_engine(backend).capabilities
    assert (declared.level, declared.credited) == (3, level)
    for clause in load().clauses:
        there = standing(clause, declared).status
        assert (there is Status.INHERITED) == (
            standing(clause, backend.capabilities).status is Status.INHERITED
        ), clause.id


def test_the_schema_is_the_one_that_is_kept():
    kept = (ROOT / "docs/wire-schema.json").read_bytes()
    assert kept == wire.schema(), "python -m refsampler.backends.stdio.schema writes it"


REQUEST = Request(
    SamplingParams(
        temperature=0.5,
        top_p=0.25,
        seed=2**64 - 1,
        logit_bias=((3, -torch.inf), (4, 1.5)),
        bad_words_token_ids=((1,), (2, 3)),
        allowed_token_ids=(3, 4),
        logprobs=2,
    ),
    (1, 2),
    (3, -1),
)


def test_a_request_survives_the_wire_and_fits_the_schema():
    asked = wire.Add(call=7, session=1, id=2, request=wire.from_request(REQUEST))
    line = wire.encode(asked)
    jsonschema.validate(msgspec.json.decode(line), msgspec.json.decode(wire.schema()))
    back = wire.read_ask(line)
    assert isinstance(back, wire.Add)
    assert wire.as_request(back.request) == REQUEST


def test_parameters_have_the_names_and_defaults_of_the_requests():
    ours = {one.name: one.default for one in fields(SamplingParams)}
    theirs = dict(zip(wire.Params.__struct_fields__, wire.Params.__struct_defaults__, strict=True))
    assert theirs.items() <= ours.items()
    text = {"n", "stop", "detokenize", "ignore_eos", "bad_words", "prompt_logprobs"}
    assert set(ours) - set(theirs) == text


def test_what_the_wire_does_not_carry_is_refused_by_name():
    with pytest.raises(ValueError, match="prompt_logprobs = 2 is refused"):
        wire.from_request(Request(SamplingParams(prompt_logprobs=2)))


def sampled(engine):
    session = engine.open(8, 1)
    return session.sample([0], torch.zeros(1, 8))


@pytest.mark.parametrize(
    "mode", [*hostile.LINES, *hostile.FILES, "nothing", "link", "pipe", "folder", "twice", "flood"]
)
def test_a_hostile_reply_is_a_fault_with_its_cause(mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    limit = 0.3 if mode == "cut" else 5.0
    engine = hostile_program(mode, call_s=limit)
    started = time.monotonic()
    with pytest.raises(SubjectTimedOut if mode == "cut" else WireFault) as caught:
        sampled(engine)
    assert time.monotonic() - started < 10
    assert str(caught.value)
    assert not list(tmp_path.iterdir())
    engine.close()


def test_the_good_mode_of_the_hostile_program_is_read():
    engine = hostile_program("good")
    assert sampled(engine).sampled_token_ids.tolist() == [[0]]
    engine.close()


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("silent", SubjectTimedOut),
        ("trickle", SubjectTimedOut),
        ("dies", SubjectCrashed),
        ("leaves", SubjectCrashed),
    ],
)
def test_a_program_that_does_not_answer_has_ended(mode, kind):
    engine = hostile_program(mode, call_s=0.3)
    started = time.monotonic()
    with pytest.raises(kind):
        sampled(engine)
    assert time.monotonic() - started < 5
    with pytest.raises(kind):  # started again
        sampled(engine)
    engine.close()


@pytest.mark.parametrize("mode", ["other-wire", "level-2"])
def test_a_program_of_another_wire_is_not_opened(mode):
    spec = f"stdio:{sys.executable} -S -E {ROOT / 'tests/wire/hostile.py'} {mode}"
    with pytest.raises(BackendBroken, match="WireFault"):
        resolve(spec)


def test_no_program_is_a_backend_that_cannot_be_opened():
    with pytest.raises(BackendBroken, match="allowed is a program"):
        resolve("stdio:/no/such/program")


def test_a_run_reports_a_broken_wire_as_an_error_and_goes_on():
    engine = hostile_program("strange")
    plan = make_plan(engine.capabilities, run_seed=SEED, evidence=False, glob="top-k.keep")
    outcome = run(OpenSubject(engine, SEED), plan, ReportWriter(None), minimise=False)
    engine.close()
    assert "code" in outcome.errors[0]
    assert "WireFault" in outcome.errors[0]
    assert statuses(outcome)["top-k.keep"] == Status.ERROR


def test_a_program_that_breaks_the_wire_again_and_again_is_not_started_again(monkeypatch):
    monkeypatch.setattr("refsampler.backends.stdio.engine._FAULTS", 2)
    engine = hostile_program("garbage")
    for _ in range(2):
        with pytest.raises(WireFault, match="garbage"):
            sampled(engine)
    with pytest.raises(WireFault, match="broke the wire 2 times"):
        sampled(engine)


def test_threads_of_a_conversation_wait_for_each_other():
    engine = hostile_program("good")
    seen: list[list[int]] = []
    numbers = set()

    def ask():
        session = engine.open(8, 1)
        numbers.add(session._session)
        seen.extend(session.sample([0], torch.zeros(1, 8)).sampled_token_ids.tolist())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    engine.close()
    assert seen == [[0]] * 4
    assert len(numbers) == 4


def test_nothing_is_left_of_a_program():
    engine = hostile_program("good")
    sampled(engine)
    folder, pid = engine._program.folder, engine._program._child.pid
    assert not list(folder.iterdir())
    engine.close()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


REPLIES = (
    wire.encode(wire.Done(call=3)),
    wire.encode(wire.Failed(call=3, kind="refused", words="top_p = 2.0 is refused")),
    wire.encode(wire.Described(call=1, wire=1, capabilities=ReferenceEngine().capabilities)),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["reply", "call", "kind", "words", "wire", "capabilities", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=6,
)


def mutants(seed: int, count: int) -> Iterator[bytes]:
    """Yield replies with bytes put in, put over, cut off or repeated."""
    noise = random.Random(seed)
    for _ in range(count):
        line = noise.choice(REPLIES)
        for _ in range(noise.randint(1, 4)):
            at, what = noise.randint(0, len(line)), noise.randbytes(noise.randint(0, 3))
            what = noise.choice((what, b'"', b"}", b"{", b"[", b"1e999", b"null", b"-1", line[:at]))
            line = noise.choice(
                (line[:at], line[:at] + what + line[at + len(what) :], line[:at] + what + line[at:])
            )
        yield line


FUZZED: list[int] = []


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32), st.binary(max_size=64) | JSON.map(msgspec.json.encode))
def test_any_line_is_a_reply_or_a_fault(seed, other):
    for line in (other, *mutants(seed, MESSAGES // 100)):
        FUZZED.append(len(line))
        with contextlib.suppress(WireFault):
            assert isinstance(wire.read_reply(line), (wire.Described, wire.Done, wire.Failed))


def test_ten_thousand_lines_were_tried():
    assert len(FUZZED) >= MESSAGES


def test_any_file_is_an_output_or_a_fault(tmp_path):
    noise = random.Random(7)
    path = tmp_path / "output-1.safetensors"
    for _ in range(500):
        bytes_ = bytearray(hostile.GOOD)
        for _ in range(noise.randint(1, 3)):
            bytes_[noise.randrange(len(bytes_))] = noise.randrange(256)
        path.write_bytes(bytes_[: noise.choice((len(bytes_), noise.randrange(len(bytes_))))])
        with contextlib.suppress(WireFault):
            assert isinstance(read_output_file(path, 1, 8), SamplerOutput)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=64) | JSON.map(msgspec.json.encode))
def test_a_server_answers_or_refuses_whatever_it_is_asked(line):
    server = Server(ReferenceEngine())
    try:
        ask = wire.read_ask(line)
    except WireFault:
        return
    assert isinstance(server.answer(ask), (wire.Described, wire.Done, wire.Failed))


def test_an_output_survives_its_file(tmp_path):
    session = ReferenceEngine().open(8, 1)
    session.add(0, Request(SamplingParams(logprobs=2)))
    output = session.sample([0], torch.arange(8.0)[None])
    write_tensors(tmp_path / "output-1.safetensors", output_tensors(output))
    back = output_tensors(read_output_file(tmp_path / "output-1.safetensors", 1, 8))
    assert back.keys() == output_tensors(output).keys()
    assert all(torch.equal(one, back[name]) for name, one in output_tensors(output).items())


def test_a_stdio_engine_is_an_engine():
    engine = hostile_program("good")
    engine.close()
    assert isinstance(engine, Engine)
