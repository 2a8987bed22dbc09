"""Recorded logits become cases whose ids depend on what the file holds, not on where it lies."""

import os

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from refsampler.conformance.case import decode_case, encode_case
from refsampler.conformance.checks.recorded import law_draws, recorded_cases
from refsampler.conformance.cli import main
from refsampler.conformance.extend import with_recorded
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.plan import LAW, make_plan
from refsampler.conformance.recorded import (
    FOLDERS,
    RecordedRow,
    RecordingError,
    add_folder,
    digest,
    tensors_of,
)

ROWS = torch.tensor([[0.5, -1.25, 3.0, -torch.inf, 2.75], [1.0, 1.0, -2.0, 0.0, 65504.0]])


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDERS, "")
    path = tmp_path / "somewhere" / "real.safetensors"
    path.parent.mkdir()
    save_file({"b": ROWS, "a": ROWS[:1].to(torch.bfloat16)}, path)
    add_folder(path)
    return path


def test_a_row_is_what_was_recorded(file):
    found = list(recorded_cases(file, RightKernel.capabilities))
    assert [(one.logits.vocab, one.dtype.name) for one in found] == [
        (5, "BFLOAT16"),
        (5, "FLOAT32"),
        (5, "FLOAT32"),
    ]
    for case, row in zip(found[1:], ROWS, strict=True):
        torch.testing.assert_close(case.build_logits()[3], row, rtol=0, atol=0)
    assert found[0].build_logits().dtype is torch.bfloat16
    np.testing.assert_array_equal(found[0].build_logits()[0].float(), ROWS[0])
    assert all(one.params.top_k <= 5 for case in found for one in case.requests)


def test_an_id_is_the_same_wherever_the_file_lies(file, tmp_path):
    before = [one.id for one in recorded_cases(file, RightKernel.capabilities)]
    moved = tmp_path / "elsewhere" / file.name
    moved.parent.mkdir()
    moved.write_bytes(file.read_bytes())
    after = list(recorded_cases(moved, RightKernel.capabilities))
    assert [one.id for one in after] == before
    assert decode_case(encode_case(after[0])) == after[0]
    save_file({"b": ROWS + 1, "a": ROWS[:1].to(torch.bfloat16)}, moved)
    assert not {one.id for one in recorded_cases(moved, RightKernel.capabilities)} & {*before}


def test_what_cannot_be_read_is_refused_by_name(file, tmp_path):
    name, known = file.name, digest(file)
    for row, words in (
        (RecordedRow("absent", known, "b", 0), "absent is not there"),
        (RecordedRow(name, "0" * 64, "b", 0), "has another sha256"),
        (RecordedRow(name, known, "b", 2), r"allowed is one with row 2 of 5 ids"),
    ):
        with pytest.raises(RecordingError, match=words):
            row.build(5)
    with pytest.raises(RecordingError, match="row 0 of 6 ids"):
        RecordedRow(name, known, "b", 0).build(6)
    wrong = tmp_path / "wrong.safetensors"
    for tensor, words in (
        (torch.zeros(3), r"F32 \[3\]"),
        (torch.zeros(3, 4, dtype=torch.int64), "I64"),
        (torch.zeros(0, 4), r"\[0, 4\]"),
    ):
        save_file({"x": tensor}, wrong)
        with pytest.raises(RecordingError, match=words):
            list(tensors_of(wrong))
    wrong.write_bytes(b"no safetensors")
    with pytest.raises(RecordingError, match=r"wrong\.safetensors"):
        list(tensors_of(wrong))


def test_check_judges_recorded_rows_and_replays_them(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def cli(*words):
        return CliRunner().invoke(main, [*words, "--in-process"])

    options = ("--clause", "greedy.tie", "--seed", "3", "--logits", str(file))
    right = cli("check", "tests.broken_samplers:RightKernel", *options)
    assert right.exit_code == 0, right.output
    report = next(tmp_path.glob("reports/runs/*/report.jsonl")).read_text()
    assert report.count('"check":"recorded-logits"') == 3
    # its designed cases never ask for top-k, the recorded rows do
    wrong = cli("check", "tests.broken_samplers:OneMore", *options)
    assert wrong.exit_code == 1, wrong.output
    case = wrong.output.partition("refsampler replay ")[2].split()[0]
    os.environ[FOLDERS] = ""
    again = cli("replay", case, "--logits", str(file))
    assert again.exit_code == 1, again.output
    refused = cli("check", "native", "--clause", "top-k.off", "--logits", __file__)
    assert refused.exit_code == 2
    assert "test_recorded.py" in refused.output


def test_recorded_rows_have_laws_of_their_own(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("refsampler.conformance.checks.recorded._MOST_DRAWS", 80_000)
    # nothing but the recorded rows, so that they show it
    monkeypatch.setattr("refsampler.conformance.checks.law.law_cases", lambda: ())
    # rows of many laws are tested elsewhere and take seconds
    monkeypatch.setattr("refsampler.conformance.plan.plan_mixed", lambda *_: ((), ""))
    capabilities = RightKernel.capabilities
    without = make_plan(capabilities, glob="draw.law", run_seed=3)
    made = with_recorded(without, file)
    # the second row of b has one likely id only, which is no law to test
    rows = [one.case.logits.rows[0].recorded for one in made.laws]
    assert [(row.tensor, row.row) for row in rows if row is not None] == [("a", 0), ("b", 0)]
    assert made.planned[LAW] == 2
    # not of a run that does not ask for the clause
    other = with_recorded(make_plan(capabilities, glob="top-k.off", run_seed=3), file)
    assert other.laws == ()

    def cli(*words):
        return CliRunner().invoke(main, words)

    about = ("--clause", "draw.law", "--seed", "3", "--logits", str(file), "--in-process")
    ran = cli("check", "tests.broken_samplers:Warmer", *about, "--report", "Warmer")
    assert ran.exit_code == 1, ran.output
    (script,) = (tmp_path / "Warmer" / "repro").glob("draw.law-*.py")
    case = script.stem.rpartition("-")[2]
    assert case in {one.case.id for one in made.laws}
    again = cli("replay", case, "--report", "Warmer", "--logits", str(file), "--in-process")
    assert again.exit_code == 1, again.output
    for one in (1, 2):
        part = ("--report", f"part{one}", "--shard", f"{one}/2")
        cli("check", "tests.broken_samplers:RightKernel", *about, *part)
    shards = ("merge", "part1", "part2", "--report", "merged")
    merged = cli(*shards, "--logits", str(file))
    assert merged.exit_code == 0, merged.output
    refused = cli(*shards)
    assert refused.exit_code == 2
    assert "--logits of the" in " ".join(refused.output.split())


@pytest.mark.parametrize(
    ("vocab", "rows", "profile", "draws"),
    [
        (5, 1, "quick", 200_000),
        (4096, 1, "quick", 8192),
        (4096, 1, "full", 65536),
        # 2^28 logits for all rows
        (4096, 64, "quick", 1024),
        (2**17, 1000, "quick", 64),
    ],
)
def test_a_recorded_row_is_drawn_about_as_often_as_others(vocab, rows, profile, draws):
    assert law_draws(vocab, rows, profile) == draws
