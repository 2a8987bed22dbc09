"""Scripts of every kind of failure: they end with 1 for the wrong adapter and with 0 for a right one.

They run in this process; that a kernel's script needs torch only is tested with the reproducers.
"""

import math
import runpy
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from refsampler.backends.native import NativeKernel
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import all_checks
from refsampler.conformance.checks.mixed import plan_mixed
from refsampler.conformance.cli import main
from refsampler.conformance.designed.build import batch, peak, request, row
from refsampler.conformance.designed.sessions import Script
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.minimise import minimise
from refsampler.conformance.plan import make_plan
from refsampler.conformance.scripts.adapter import head
from refsampler.conformance.scripts.conversation import check_called, conversation_body
from refsampler.conformance.scripts.law import law_script
from refsampler.conformance.scripts.mixed import mixed_script
from refsampler.conformance.scripts.pairs import pairs_script
from refsampler.conformance.scripts.tails import resolution_script, tail_script
from refsampler.conformance.subject import OpenSubject
from tests import broken_sessions
from tests.broken_streams import Independent

SEED = 3


class NeighboursLogits(NativeKernel):
    """Each row is drawn from the logits of the row above."""

    def draw(self, logits, rows):
        return super().draw(logits.roll(1, dims=0), rows)


class SeedsIgnored(RightKernel):
    """Draws every row from torch's own generator."""

    def draw(self, logits, rows):
        rows.generators.clear()
        return super().draw(logits, rows)


@pytest.fixture
def ended(tmp_path, capsys):
    def run(text):
        """Return how a script ends and what it prints."""
        path = tmp_path / "script.py"
        path.write_text(text)
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(path))
        return end.value.code, capsys.readouterr().out

    return run


def streams(glob):
    return make_plan(Independent.capabilities, glob=glob, run_seed=SEED).sequential


def test_a_program_on_the_wire_is_reached_by_its_script(tmp_path):
    program = Path(__file__).parent / "wire/subject.py"
    path = tmp_path / "script.py"
    path.write_text(head(f"stdio:{sys.executable} {program}", title="a program"))
    adapter = runpy.run_path(str(path))["adapter"]
    assert adapter.capabilities.level == 3
    adapter.close()


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("Repeats", "independent-rows"),
        ("Reseeded", "independent-calls"),
        ("SameSeedAsTorch", "later-uniforms"),
        ("ThreadsAlike", "threads"),
    ],
)
def test_pairs(ended, name, check):
    (one,) = [pair for pair in streams("independence.*").pairs if pair.check.name == check]
    for subject, code in ((name, 1), ("Independent", 0)):
        text = pairs_script(one, f"tests.broken_streams:{subject}", Independent.capabilities, SEED)
        assert text is not None
        assert f"{one.draws} ids are drawn; what would show: {one.seen.bias}" in text
        found, printed = ended(text)
        assert found == code, printed


def test_the_race_of_a_right_sampler_shows_nothing(ended):
    (one,) = [pair for pair in streams("independence.*").pairs if pair.check.name == "later-race"]
    text = pairs_script(one, "tests.broken_streams:Independent", Independent.capabilities, SEED)
    assert text is not None
    assert ended(text)[0] == 0


@pytest.mark.parametrize(
    ("name", "grade", "write"),
    [
        ("TailDropped", 1e-6, tail_script),
        ("Coarse", 1e-5, resolution_script),
    ],
)
def test_tails(ended, name, grade, write):
    (one,) = [tail for tail in streams("draw.tail").tails if tail.grade == grade]
    for subject, code in ((name, 1), ("Independent", 0)):
        text = write(one, f"tests.broken_streams:{subject}", Independent.capabilities, SEED)
        found, printed = ended(text)
        assert found == code, printed
        assert printed.startswith("drawing ")


def test_rows_of_many_laws(ended):
    capabilities = NativeKernel().capabilities
    ((one,), _) = plan_mixed(capabilities, "quick")
    text = mixed_script(one, "tests.test_scripts:NeighboursLogits", capabilities, SEED)
    found, printed = ended(text)
    assert found == 1, printed
    found, printed = ended(text.replace("NeighboursLogits", "NativeKernel"))
    assert found == 0, printed


class Warmer(Independent):
    """The temperature is 5 % too high."""

    def law(self, probs):
        return probs ** (1 / 1.05)


class OnceRare(Independent):
    """The first id of all is one of probability 1e-9, which in 200,000 draws happens once in 5,000 runs."""

    def __init__(self):
        self._drawn = False

    def sample(self, logits, metadata):
        output = super().sample(logits, metadata)
        if not self._drawn:
            output.sampled_token_ids[0] = 3
        self._drawn = True
        return output


@pytest.mark.parametrize(("name", "code"), [("Warmer", 1), ("OnceRare", 0), ("Independent", 0)])
def test_a_law(ended, name, code):
    """Cells of (.665, .245, .09), a rare one and none left; 5 % warmer is 6e-4 nats a draw, 120 in all.

    By hand: ln(2 * 5 / 5e-10) = 23.7 for one cell of five; t = 34.0 solves 4 + 4 ln(t/4) - t = ln 5e-10.
    """
    rows = [(row({0: 0.0, 1: -1.0, 2: -2.0, 3: -20.3}, base=-math.inf), request())]
    case = batch(4, rows, "draw.law")
    text = law_script(
        case, f"tests.test_scripts:{name}", Independent.capabilities, SEED, draws=50_000
    )
    found, printed = ended(text)
    assert found == code, printed
    assert "nats of 23.7, all by " in printed
    assert " of 34.0" in printed


def conversation(backend, spec, check_name):
    """The script of the first case of a check that a backend fails."""
    check = next(one for one in all_checks() if one.name == check_name)
    subject = OpenSubject(backend, SEED)
    for case in check.cases(subject.capabilities, SEED):
        found = judge_case(subject, check, case).findings
        if found:
            written = check_called(f"script of {check_name}")
            assert written.ask is not None
            body = written.ask(subject, case).script
            words = found[0].expected, found[0].seen
            return head(spec, title="t") + conversation_body(body, *words, raises=False)
    raise AssertionError("nothing fails")


@pytest.mark.parametrize(
    ("name", "check", "right"),
    [
        ("ForgetsWaiting", "session-preemption", 0),
        ("EmittedLate", "session-histories", 0),
        ("RecordsLate", "logprobs-over-steps", 0),
        # what a right engine answers in place of admitting cannot be told from the calls
        ("NothingChecked", "bad-requests", 2),
        ("StrictRank", "logprobs", 0),
        ("FilteredGreedyRows", "logprobs-modes", 2),
        ("BothFlags", "both-flags", 2),
        ("MaskBroadcast", "mask-widths", 2),
        ("PenaltiesDropped", "refusals", 0),
    ],
)
def test_conversations(ended, name, check, right):
    backend = getattr(broken_sessions, name)()
    text = conversation(backend, f"tests.broken_sessions:{name}", check)
    found, printed = ended(text)
    assert found == 1, printed
    kind = "RightEngine" if backend.capabilities.level == 3 else "RightSampler"
    found, printed = ended(text.replace(f'("{name}")', f'("{kind}")'))
    assert found == right, printed


@pytest.mark.parametrize("check", ["seeds-again", "seeds-surrounded", "seeds-under-load"])
def test_seeds_of_a_kernel(ended, check):
    text = conversation(SeedsIgnored(), "tests.test_scripts:SeedsIgnored", check)
    assert ("BESIDE = [\n    (" in text) == (check == "seeds-under-load")
    found, printed = ended(text)
    assert found == 1, printed
    assert "of one seed" in printed
    right = text.replace("tests.test_scripts", "refsampler.conformance.faults.right")
    found, printed = ended(right.replace("SeedsIgnored", "RightKernel"))
    assert found == 0, printed


def test_a_session_shrinks_to_the_steps_and_requests_that_fail():
    script = Script(vocab=16)
    for name in range(4):
        script.add(name, (peak(3 + name), request()))
    for step in range(6):
        script.step([0, 1, 2, 3] if step < 3 else [0, 2], {2: (step,)})
        if step == 2:
            script.remove(3)

    def fails(case):
        return any(one.output == (0, 1, 2) for one in case.requests)

    smallest = minimise(script.case("batch.state"), fails, fails, deadline=math.inf)
    assert smallest is not None
    assert [step.ids for step in smallest.steps] == [(2,)]
    assert [one.output for one in smallest.requests] == [(0, 1, 2)]


@pytest.mark.parametrize(
    ("name", "glob"), [("Reseeded", "independence.calls"), ("TailDropped", "draw.tail")]
)
def test_pairs_and_tails_are_replayed(tmp_path, monkeypatch, name, glob):
    monkeypatch.chdir(tmp_path)

    def cli(*words):
        return CliRunner().invoke(main, [*words, "--in-process"])

    ran = cli("check", f"tests.broken_streams:{name}", "--clause", glob, "--seed", "3")
    assert ran.exit_code == 1, ran.output
    (path,) = tmp_path.glob(f"reports/runs/*/repro/{glob}-*.py")
    case = path.stem.rpartition("-")[2]
    assert f"refsampler replay {case}" in ran.output
    again = cli("replay", case)
    assert again.exit_code == 1, again.output
    assert f"FAIL {glob}" in again.output
    right = cli("replay", case, "--backend", "tests.broken_streams:Independent")
    assert right.exit_code == 0, right.output
    assert f"{glob}: nothing wrong was seen: e-value 10^" in right.output
