"""Known failures beside verdicts: exit codes, stale entries, and a file rewritten with its comments."""

import pytest
from click.testing import CliRunner

from refsampler.clauses import ClauseId, Level
from refsampler.conformance.cli import main
from refsampler.conformance.decisions import Decision
from refsampler.conformance.expectations import (
    ExpectationsError,
    apply_expectations,
    expected_exit_code,
    expected_headline,
    read_expectations,
    stale_entries,
    updated_document,
)
from refsampler.conformance.verdict import Exact, Status, Verdict

FILE = """# what we know

[[expect]]  # the ties
clause = "top-k.ties"
status = "fail"
reason = "keeps exactly k"
issue = "issue 7"

[[expect]]
clause = "top-p.keep"
backend = "other*"
status = "fail"
reason = "another kernel"

[[expect]]
# passes by now
clause = "min-p.keep"
status = "fail"
reason = "was fixed"

[[expect]]
clause = "top-k.off"
backend = "mi*"
status = "fail"
reason = "still so for some"
"""


def decided(**statuses):
    return tuple(
        Decision(
            Verdict(
                ClauseId(name.replace("__", ".").replace("_", "-")),
                Status[status],
                None,
                None,
                Exact(),
                "expected 1;\nseen 2",
                0,
                (),
                0.0,
                "",
            ),
            Level.MUST,
        )
        for name, status in statuses.items()
    )


@pytest.fixture
def entries(tmp_path):
    path = tmp_path / "expectations.toml"
    path.write_text(FILE)
    return read_expectations(path)


def code(entries, **statuses):
    applied = apply_expectations(decided(**statuses), entries, "mine")
    found = expected_exit_code(applied, [])
    return found, expected_headline(applied, found)


def test_an_expected_failure_matches_and_does_not_conform(entries):
    found, line = code(entries, top_k__ties="FAIL", top_k__keep="PASS")
    assert found == 0
    assert line.startswith("matches expectations: 2 clauses owned; 1 pass, 1 fail")
    assert line.endswith("1 failed as expected")
    # nothing else ran, and what ran is as expected
    assert code(entries, top_k__ties="FAIL")[0] == 0
    assert code(entries, top_k__keep="PASS")[1].startswith("conforms")


def test_what_is_not_expected_fails(entries):
    assert code(entries, top_k__ties="FAIL", top_k__keep="FAIL")[0] == 1
    # the entry is about another backend
    assert code(entries, top_p__keep="FAIL", top_k__keep="PASS")[0] == 1
    assert code(entries, top_k__ties="FAIL", top_k__keep="INCONCLUSIVE")[0] == 3


def test_status_and_expectation_stand_side_by_side(entries):
    (ties, passed) = apply_expectations(
        decided(top_k__ties="FAIL", min_p__keep="PASS"), entries, "mine"
    )
    assert (ties.verdict.status, ties.verdict.expected) == (Status.FAIL, Status.FAIL)
    assert ties.reason == "expected: keeps exactly k (issue 7)"
    assert (passed.verdict.status, passed.verdict.expected) == (Status.PASS, Status.FAIL)
    assert passed.reason == "unexpected pass; the expectation says: was fixed"


def test_stale_entries_are_those_that_the_run_contradicts(entries):
    found = decided(top_k__ties="FAIL", top_p__keep="PASS", min_p__keep="PASS", top_k__off="PASS")
    stale = stale_entries(found, entries, "mine")
    assert [(one.entry.clause, one.why) for one in stale] == [
        ("min-p.keep", "the clause passes"),
        ("top-k.off", "the clause passes"),
    ]
    undecided = decided(top_k__ties="INCONCLUSIVE", min_p__keep="ERROR")
    assert stale_entries(undecided, entries, "mine") == ()
    (inherited,) = stale_entries(decided(min_p__keep="INHERITED"), entries, "mine")
    assert inherited.why == "the clause is inherited for this backend"


def test_the_file_is_rewritten_with_its_comments(entries):
    found = apply_expectations(
        decided(
            top_k__ties="FAIL",
            top_p__keep="PASS",
            min_p__keep="PASS",
            top_k__off="PASS",
            top_k__keep="FAIL",
        ),
        entries,
        "mine",
    )
    text = updated_document(FILE, found, "mine")
    before, _, rest = FILE.partition("[[expect]]\n# passes by now")
    assert text.startswith(before)
    kept = rest[rest.index("[[expect]]") :]
    assert kept in text
    assert "was fixed" not in text
    added = text.partition(kept)[2].split("\n")
    assert [line for line in added if line] == [
        "[[expect]]",
        'clause = "top-k.keep"',
        'backend = "mine"',
        'status = "fail"',
        'reason = "" # expected 1; seen 2',
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[expect]]\nclause = "a"\nstatus = "fail"\n', "missing required field `reason`"),
        ('[[expect]]\nclause = "a"\nstatus = "fail"\nreason = " "\n', "reason is empty"),
        ('[[expect]]\nclause = "a"\nstatus = "pass"\nreason = "x"\n', "allowed is 'fail'"),
        (
            '[[expect]]\nclause = "a"\nstatus = "fail"\nreason = "x"\nwhy = 1\n',
            "unknown field `why`",
        ),
        ("[[expect]\n", "expectations.toml: "),
        ('[[expect]]\nclause = "a"\nstatus = "fail"\nreason = "x"\n' * 2, "stands there twice"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, text, words):
    path = tmp_path / "expectations.toml"
    path.write_text(text)
    with pytest.raises(ExpectationsError, match=r"expectations\.toml") as caught:
        read_expectations(path)
    assert words in str(caught.value)


def test_check_with_expectations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = "tests.broken_samplers:TiesCut"

    def check(*options):
        words = ["check", wrong, "--clause", "top-k.*", "--seed", "3", "--in-process"]
        return CliRunner().invoke(main, [*words, "--expectations", "e.toml", *options])

    assert check().exit_code == 2
    started = check("--update-expectations")
    assert started.exit_code == 1, started.output
    text = (tmp_path / "e.toml").read_text()
    assert 'clause = "top-k.ties"' in text
    assert check().exit_code == 2
    (tmp_path / "e.toml").write_text(text.replace('reason = ""', 'reason = "exactly k ids"'))
    known = check()
    assert known.exit_code == 0, known.output
    assert "FAIL         top-k.ties             expected: exactly k ids" in known.output
    assert "matches expectations: " in known.output
    (tmp_path / "e.toml").write_text(
        '[[expect]]\nclause = "top-k.off"\nstatus = "fail"\nreason = "no"\n'
    )
    stale = check()
    assert stale.exit_code == 1, stale.output
    assert "stale expectation of top-k.off: the clause passes" in stale.output
