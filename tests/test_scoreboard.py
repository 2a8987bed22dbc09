"""The scoreboard: counts by group, failures, and how far declared laws are from vLLM's."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from refsampler.backends.native import backend as native
from refsampler.clauses import load
from refsampler.conformance.cli import main
from refsampler.conformance.differences import TYPICAL, differences, distance
from refsampler.conformance.plan import make_plan
from refsampler.conformance.records import Footer, ReportWriter, VerdictRecord
from refsampler.conformance.reporting.records import header_record
from refsampler.conformance.scoreboard import read_entry, scoreboard, verdict_page
from refsampler.semantics import PROFILES, Semantics, profile

STATUSES = {"top-k.keep": "pass", "top-k.ties": "fail", "top-k.off": "inconclusive"}
STATUSES |= {"penalty.history": "inherited", "greedy.argmax": "pass"}


def verdict(clause, status):
    shown = "expected id 3; seen id 4" if status == "fail" else ""
    return VerdictRecord(
        clause=clause,
        status=status,
        reason="",
        case=None,
        log_e=None,
        log_threshold=None,
        false_alarm=0.0,
        cases=2,
        draws=1200,
        would_see=(),
        replay="",
        effect=shown,
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of an engine that breaks one clause of a group and leaves one undecided."""
    folder = tmp_path_factory.mktemp("report")
    declared = replace(native.capabilities, name="my.engine", semantics=profile("llama.cpp"))
    made = make_plan(declared, run_seed=11, evidence=False, glob="top-k.keep")
    with ReportWriter((folder / "report.jsonl").open("wb")) as writer:
        writer.write(header_record(made, "stdio:./engine", 75.0))
        for clause, status in STATUSES.items():
            writer.write(verdict(clause, status))
        writer.write(Footer(exit_code=1, headline="does not conform", cases=9, draws=1, seconds=2))
    return folder


def test_vllm_is_no_distance_from_itself():
    assert differences(Semantics()) == ()
    assert [distance(Semantics(), one) for one in TYPICAL] == [0.0] * len(TYPICAL)


def test_temperature_last_moves_a_hot_request_far():
    hot = next(one for one in TYPICAL if one.name == "T 1.5, top-p 0.8")
    assert distance(profile("llama.cpp"), hot) > 0.05
    assert distance(profile("transformers"), hot) == 0.0


def test_every_difference_is_named():
    for one in PROFILES:
        apart = any(distance(one, typical) > 0 for typical in TYPICAL)
        assert not apart or differences(one), one.profile
    assert "top_p_cut = inclusive, not strict" in differences(profile("sglang"))


def test_the_page_counts_and_links(report, tmp_path):
    result = CliRunner().invoke(main, ["scoreboard", str(report), "--into", str(tmp_path)])
    assert result.exit_code == 0, result.output
    entry = read_entry(report)
    page = (tmp_path / "scoreboard.md").read_text("utf-8")
    groups = list(dict.fromkeys(clause.group for clause in load().clauses))
    (line,) = [one for one in page.splitlines() if one.startswith("| [my.engine](my-engine.md)")]
    cells = dict(zip(groups, line.split(" | ")[3:], strict=True))
    assert cells["top-k"] == "1/3 (**1**)"
    assert cells["greedy"] == "1/1"
    assert cells["penalty"] == cells["seed"] == "-"
    assert "fails `top-k.ties`; 1 undecided" in page
    assert page == scoreboard({entry.header.backend.replace(".", "-"): entry})
    assert verdict_page(entry).count("| `top-k.") == 3
    for line in page.splitlines():
        if line.startswith(("* [", "| [")):
            target = line.partition("](")[2].partition(")")[0]
            assert (tmp_path / target).exists()


def test_a_report_that_was_cut_is_refused(report, tmp_path):
    lines = (report / "report.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "report.jsonl").write_bytes(b"".join(lines[:-1]))
    result = CliRunner().invoke(main, ["scoreboard", str(tmp_path), "--into", str(tmp_path)])
    assert result.exit_code == 2
    assert "no finished report" in result.output
