"""What a run tells GitHub Actions, and that it says nothing elsewhere."""

from refsampler.clauses import ClauseId, Level
from refsampler.conformance.decisions import Decision
from refsampler.conformance.reporting.github import tell_github
from refsampler.conformance.verdict import Exact, Status, Verdict


def decided(clause, status, level=Level.MUST, expected=None, seen="id 3\nof 100 %"):
    verdict = Verdict(
        ClauseId(clause),
        status,
        expected,
        "0123",
        Exact(),
        "",
        9,
        (),
        0.0,
        "refsampler replay 0123",
    )
    return Decision(verdict, level, "why: a, b", 1, "one of 2 ids", seen)


RUN = [
    decided("top-k.keep", Status.FAIL),
    decided("mask.flagged", Status.FAIL, Level.SHOULD),
    decided("top-p.keep", Status.FAIL, expected=Status.FAIL),
    decided("draw.law", Status.INCONCLUSIVE),
    decided("draw.tail", Status.PASS),
    decided("mask.allowed", Status.INHERITED),
]


def test_nothing_happens_elsewhere(tmp_path):
    summary = tmp_path / "summary"
    assert tell_github({"GITHUB_STEP_SUMMARY": str(summary)}, "page", RUN, 1) == ()
    assert not summary.exists()


def test_summary_outputs_and_annotations(tmp_path):
    summary, outputs = tmp_path / "summary", tmp_path / "outputs"
    summary.write_text("before\n")
    environ = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    lines = tell_github(environ | {"GITHUB_OUTPUT": str(outputs)}, "page\n", RUN, 1)
    assert summary.read_text() == "before\npage\n"
    assert outputs.read_text() == "verdict=does-not-conform\nfailed=3\ninconclusive=1\n"
    assert [line.partition(" ")[0] for line in lines] == [
        *("::error", "::warning", "::warning", "::error")
    ]
    assert lines[0].startswith("::error title=top-k.keep FAIL::FAIL top-k.keep%0A")
    assert "id 3%0Aof 100 %25" in lines[0]
    assert not any("\n" in line for line in lines)
    assert lines[3] == "::error title=draw.law INCONCLUSIVE::INCONCLUSIVE: why: a, b"


def test_a_summary_keeps_to_what_github_takes(tmp_path):
    summary = tmp_path / "summary"
    environ = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    tell_github(environ, "δ" * 2**20, [], 0)
    assert summary.stat().st_size <= 2**20
    assert summary.read_text("utf-8").endswith("The rest is left out: a summary holds 1 MiB.\n")
