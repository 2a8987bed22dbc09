"""Comparing: what changed between runs, distances with intervals that hold, and their commands."""

import json

import jsonschema
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from refsampler.conformance.cli import main
from refsampler.conformance.commands.schema import NAMES, schema_of
from refsampler.conformance.reporting.changes import Kind, changes
from refsampler.conformance.reporting.distance import between, from_law
from refsampler.conformance.reporting.stored import read_run
from tests.failing_run import failing_run


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    return failing_run(tmp_path_factory.mktemp("right"), "RightKernel", code=0)


def invoke(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def test_an_interval_worked_by_hand():
    # 3 cells, 100 draws: swing = sqrt(ln(1e6) / 200) = 0.2628, noise = sqrt(2 / 100) / 2 = 0.0707
    one = from_law(np.array([0.5, 0.5, 0.0]), np.array([100, 0, 0]))
    assert one.observed == pytest.approx(0.5)
    assert (one.low, one.high) == pytest.approx((0.1665, 0.7628), abs=1e-4)
    assert one.detectable == pytest.approx(0.5963, abs=1e-4)
    # 100 and 400 draws: swing = sqrt(ln(1e6) / 160), noise = 0.0707 + 0.0354
    two = between(np.array([100, 0, 0]), np.array([0, 400, 0]))
    assert two.observed == 1
    assert (two.low, two.high) == pytest.approx((1 - 0.1061 - 0.2938, 1.0), abs=1e-4)


def test_intervals_hold_and_what_they_promise_is_seen():
    # each end may be wrong with probability 1e-6: over 400 samples once in 1,250 such tests, and
    # the seed is fixed
    rng = np.random.default_rng(11)
    probs, other = np.full(16, 1 / 16), np.full(16, 1 / 16)
    size = from_law(probs, rng.multinomial(20_000, probs)).detectable
    other[:8] += size / 8
    other[8:] -= size / 8
    for _ in range(200):
        same = from_law(probs, rng.multinomial(20_000, probs))
        assert same.low == 0
        off = from_law(probs, rng.multinomial(20_000, other))
        assert 0 < off.low <= size <= off.high


def test_changes_between_two_runs(failing, right):
    forwards = {one.clause: one for one in changes(read_run(right), read_run(failing))}
    assert forwards["draw.law"].kind is Kind.NEW_FAILURE
    assert forwards["draw.law"].before == "PASS"
    assert "temperature +5 %" in forwards["draw.law"].after
    backwards = {one.clause: one.kind for one in changes(read_run(failing), read_run(right))}
    assert backwards["draw.law"] is Kind.FIXED
    assert changes(read_run(failing), read_run(failing)) == ()


def test_a_changed_effect_is_no_new_failure(failing, tmp_path):
    lines = (failing / "report.jsonl").read_text("utf-8")
    changed = lines.replace("seen all cases: temperature +5 %", "seen something else")
    assert changed != lines
    (tmp_path / "report.jsonl").write_text(changed, "utf-8")
    (one,) = changes(read_run(failing), read_run(tmp_path))
    assert (one.kind, one.clause) == (Kind.EFFECT, "draw.law")


def test_the_command_on_two_runs(failing, right):
    ran = invoke("compare", right, failing)
    assert ran.exit_code == 1, ran.output
    assert "new failure" in ran.output
    assert "EXPLORATORY" in ran.output
    assert "temperature looks like" in ran.output
    fixed = invoke("compare", failing, right, "--format", "json")
    assert fixed.exit_code == 0, fixed.output
    jsonschema.validate(json.loads(fixed.stdout), schema_of("compare-runs"))
    same = invoke("compare", failing, failing)
    assert same.exit_code == 0
    assert "every clause has the verdict that it had" in same.output


def test_the_command_on_two_backends():
    words = ("--draws", 20_000, "--vocab", 256, "--top-k", 50, "--seed", 3)
    here = ("compare", "reference", "native")
    ran = invoke(*here, *words)
    assert ran.exit_code == 0, ran.output
    assert "no distance was seen" in ran.output
    assert "equal" not in ran.output
    shown = invoke(*here, *words, "--format", "json")
    jsonschema.validate(json.loads(shown.stdout), schema_of("compare-backends"))
    # other noise: the same draws of both would be no two samples
    (found,) = json.loads(shown.stdout)["rows"]
    assert found["first"]["observed"] != found["second"]["observed"]


def test_the_command_on_rows_of_the_users_own(tmp_path):
    rows = np.full((3, 64), -np.inf, dtype=np.float32)
    rows[0, :4] = np.log([0.4, 0.3, 0.2, 0.1])  # row 1 has nothing to draw
    rows[2, 60:] = np.log([0.7, 0.1, 0.1, 0.1])
    save_file({"mine": rows}, tmp_path / "mine.safetensors")
    np.save(tmp_path / "mine.npy", rows)
    # each end holds for three rows together: swing of 5,000 draws sqrt(ln(3e6) / 1e4) = 0.03862;
    # noise of the four ids and the cell outside sqrt(4 / 5000) / 2 = 0.01414
    wrong = "tests.broken_samplers:NoTemperature"
    words = ("compare", wrong, "reference", "--temperature", 2, "--logits")
    mine = tmp_path / "mine.safetensors"
    shown = invoke(*words, mine, "--draws", 5_000, "--seed", 3, "--format", "json")
    assert shown.exit_code == 1, shown.output
    jsonschema.validate(json.loads(shown.stdout), schema_of("compare-backends"))
    found = json.loads(shown.stdout)
    assert found["without_law"] == ["mine[1]"]
    assert [one["row"] for one in found["rows"]] == ["mine[0]", "mine[2]"]
    assert found["rows"][1]["first"]["detectable"] == pytest.approx(0.01414 + 2 * 0.03862, abs=1e-4)
    assert found["rows"][1]["first"]["low"] > 0
    assert found["rows"][1]["second"]["low"] == 0
    assert invoke(*words, mine, "--row", 3).exit_code == 2
    one = invoke(*words, tmp_path / "mine.npy", "--draws", 500, "--seed", 3, "--row", 0)
    assert "mine[0]: V = 64, 4 ids kept" in one.output
    assert "mine[2]" not in one.output


@pytest.mark.parametrize(
    "words", [("nowhere", "native"), ("native", "nowhere"), ("{failing}", "native")]
)
def test_what_cannot_be_compared_is_refused(failing, words):
    ran = invoke("compare", *(word.format(failing=failing) for word in words))
    assert ran.exit_code in (2, 4), ran.output
    assert "Traceback" not in ran.output


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_schemas(name):
    ran = invoke("schema", name)
    assert ran.exit_code == 0, ran.output
    jsonschema.Draft202012Validator.check_schema(json.loads(ran.stdout))


def test_outputs_are_what_their_schemas_say(failing, tmp_path):
    line = jsonschema.Draft202012Validator(schema_of("report"))
    for record in (failing / "report.jsonl").read_bytes().splitlines():
        line.validate(msgspec.json.decode(record))
    with pytest.raises(jsonschema.ValidationError):
        line.validate({"record": "verdict", "clause": 3})
    for name, words in {
        "clauses": ("clauses", "top-p.*"),
        "explain": ("explain", "top-p.keep"),
        "check": ("check", "native", "--clause", "top-k.off", "--report", tmp_path),
    }.items():
        shown = invoke(*words, "--format", "json")
        jsonschema.validate(json.loads(shown.stdout), schema_of(name))
