import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from refsampler import clauses
from refsampler.clauses import ClauseId, ContractError, Level, UnknownClauseError
from refsampler.conformance.cli import main

ROOT = Path(__file__).parents[1]
TOPS = ("refsampler", "backends", "conformance")
SOURCES = [path for top in TOPS for path in (ROOT / top).rglob("*.py")]

# Append-only: an id may be added to the contract and then here, never renamed or removed.
PUBLISHED_IDS = """
batch.flags batch.isolation batch.permutation batch.size batch.state bias.additive cost.bounded
determinism.repeat draw.law draw.resolution draw.support draw.tail effect.parameters greedy.argmax
greedy.mixed greedy.threshold greedy.tie history.preempt independence.calls independence.rows
independence.streams input.dtypes input.extreme input.large input.layout input.untouched
input.validated logprobs.finite logprobs.gather logprobs.neutral logprobs.rank logprobs.raw
logprobs.step mask.allowed mask.bad-words mask.empty mask.flagged mask.min-tokens mask.width min-p.keep
nonfinite.contained order.pipeline output.form output.range output.returns output.vocab-padding
parallel.ranks penalty.frequency penalty.history penalty.presence penalty.repetition
refuse.unsupported relabel.equivariance seed.batch seed.effect seed.reproducible spec.degenerate
spec.draft-law spec.greedy spec.history spec.law spec.processors temperature.scale thinking.force
top-k.keep top-k.off top-k.ties top-p.keep top-p.off top-p.ties
"""
PUBLISHED = PUBLISHED_IDS.split()

ENTRY = {
    "id": '"a.b"',
    "level": '"MUST"',
    "owner": "1",
    "text": '"Text."',
    "reason": '"Reason."',
    "since": '"1.0"',
}


def toml(version: str = "1.0", **changes: str) -> str:
    fields = {name: value for name, value in {**ENTRY, **changes}.items() if value}
    lines = "\n".join(f"{name} = {value}" for name, value in fields.items())
    return f'contract = "{version}"\n[[clause]]\n{lines}\n'


def test_no_published_id_is_gone():
    ids = sorted(clause.id for clause in clauses.load().clauses)
    assert ids == sorted(PUBLISHED), "ids are append-only: add new ones to PUBLISHED_IDS"


def test_the_digest_is_that_of_the_file():
    content = (ROOT / "refsampler" / "clauses.toml").read_bytes()
    assert clauses.load().digest == hashlib.sha256(content).hexdigest()
    assert clauses.load().version == "1.0"


def test_should_is_used_where_nothing_gates():
    should = {c.id for c in clauses.load().clauses if c.level is Level.SHOULD}
    assert should == {"draw.resolution", "cost.bounded", "mask.flagged"}


def test_texts_are_sentences():
    for clause in clauses.load().clauses:
        for sentence in filter(None, (clause.text, clause.reason, clause.departs)):
            assert sentence.endswith("."), clause.id
            assert sentence == " ".join(sentence.split()), clause.id
            assert sentence.isascii(), clause.id


def test_capabilities_are_those_that_a_backend_can_declare():
    from refsampler.backends.protocol import Feature

    named = {clause.capability for clause in clauses.load().clauses} - {""}
    assert named <= {feature.value for feature in Feature}
    assert "seed" in named


def test_a_field_is_read():
    contract = clauses.parse(toml(capability='"seed"', needs='"gpu"', departs='"Does not."'))
    (clause,) = contract.clauses
    assert (clause.id, clause.level, clause.owner) == ("a.b", Level.MUST, 1)
    assert (clause.capability, clause.needs, clause.departs) == ("seed", "gpu", "Does not.")
    assert clause.group == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (toml(version="one"), "contract = 'one'"),
        (toml(id=""), r"\(no id\): missing id"),
        (toml(reason=""), "a.b: missing reason"),
        (toml(colour='"red"'), "a.b: unknown field colour"),
        (toml(id='"nogroup"'), "id = 'nogroup'"),
        (toml(id='"a.B"'), "id = 'a.B'"),
        (toml(id='"a.b.c"'), "id = 'a.b.c'"),
        (toml(level='"WILL"'), "a.b: level = 'WILL'; expected MUST, SHOULD or MAY"),
        (toml(owner="0"), "a.b: owner = 0; expected 1, 2 or 3"),
        (toml(owner="4"), "a.b: owner = 4; expected 1, 2 or 3"),
        (toml(owner="true"), "a.b: owner = True; expected 1, 2 or 3"),
        (toml(text='"  "'), "a.b: text = '  '; expected some text"),
        (toml(departs="3"), "a.b: departs = 3; expected some text"),
        (toml(since='"now"'), "a.b: since = 'now'"),
        (toml() + toml().partition("\n")[2], "a.b: this id is used twice"),
    ],
)
def test_a_broken_contract_is_refused(text, message):
    with pytest.raises(ContractError, match=message):
        clauses.parse(text)


def test_get_names_what_comes_close():
    assert clauses.get("top-k.keep").group == "top-k"
    with pytest.raises(UnknownClauseError, match=r"'topk\.keep'; did you mean top-k\.k") as caught:
        clauses.get("topk.keep")
    assert caught.value.close[0] == "top-k.keep"
    with pytest.raises(UnknownClauseError, match=r"^no clause is called 'xyzzy'$"):
        clauses.get("xyzzy")


@pytest.mark.parametrize(
    ("glob", "ids"),
    [
        ("top-k.*", ["top-k.keep", "top-k.ties", "top-k.off"]),
        ("top-k", ["top-k.keep", "top-k.ties", "top-k.off"]),
        ("*.keep", ["min-p.keep", "top-k.keep", "top-p.keep"]),
        ("draw.law", ["draw.law"]),
        ("draw", ["draw.support", "draw.law", "draw.tail", "draw.resolution"]),
        ("dra", []),
        ("TOP-K.*", []),
    ],
)
def test_select(glob, ids):
    assert [clause.id for clause in clauses.select(glob)] == ids


def cited_ids(text: str) -> set[str]:
    """Back-quoted ``group.name`` tokens whose group is one of the contract's."""
    groups = "|".join(sorted({re.escape(c.group) for c in clauses.load().clauses}))
    return set(re.findall(rf"`((?:{groups})\.[a-z]+(?:-[a-z]+)*)`", text))


def test_citations_are_found():
    assert cited_ids("see `top-k.keep`, ``draw.laws`` and `torch.sort`, top-p.off") == {
        "top-k.keep",
        "draw.laws",
    }


def test_every_cited_clause_exists():
    known = {clause.id for clause in clauses.load().clauses}
    unknown = {
        (str(path.relative_to(ROOT)), cited)
        for path in SOURCES
        for cited in cited_ids(path.read_text(encoding="utf-8")) - known
    }
    assert not unknown


@dataclass(frozen=True)
class FakeCheck:
    name: str
    clauses: tuple[ClauseId, ...]


@pytest.fixture
def run(monkeypatch):
    """The command line with two checks: of every clause but top-p.off and cost.bounded."""
    tested = [c.id for c in clauses.load().clauses if c.id not in {"top-p.off", "cost.bounded"}]
    module = ModuleType("refsampler.conformance.checks")
    checks = (FakeCheck("one", tuple(tested)), FakeCheck("two", (tested[0],)))
    vars(module)["all_checks"] = lambda: checks
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return lambda *args: CliRunner().invoke(main, args)


def test_version(run):
    assert run("--version").output == "refsampler, version 0.1.0\n"


def test_clauses_prints_a_line_each_where_there_is_no_terminal(run):
    result = run("clauses")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == len(PUBLISHED)
    assert result.output.startswith("input.dtypes [MUST, level 1] Logits in float32")


def test_clauses_as_json_carry_the_digest(run):
    document = json.loads(run("clauses", "seed", "--format", "json").stdout)
    assert document["digest"] == clauses.load().digest
    assert [c["id"] for c in document["clauses"]] == [
        "seed.reproducible",
        "seed.batch",
        "seed.effect",
    ]


def test_clauses_as_markdown_escape_bars(run):
    head, rule, row = run("clauses", "input.extreme", "--format", "markdown").output.splitlines()
    assert head.count("|") == rule.count("|") == row.replace(r"\|", "").count("|") == 5
    assert r"(\|x\| up to 65504" in row


def test_a_glob_without_a_match_is_a_usage_error(run):
    result = run("clauses", "nothing.*")
    assert result.exit_code == 2
    assert "no clause matches 'nothing.*'" in result.stderr


def test_coverage_fails_on_a_must_without_a_check(run):
    result = run("clauses", "--coverage")
    assert result.exit_code == 1
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["top-p.off", "cost.bounded"]
    assert f"{len(PUBLISHED) - 2} of {len(PUBLISHED)} clauses have a check" in result.stderr


def test_coverage_lets_a_should_pass(run):
    assert run("clauses", "cost.*", "--coverage").exit_code == 0


def test_coverage_lets_a_must_pass_that_needs_a_special_machine(run, monkeypatch):
    module = sys.modules["refsampler.conformance.checks"]
    monkeypatch.setattr(module, "all_checks", tuple)
    assert run("clauses", "input.large", "--coverage").exit_code == 0
    assert run("clauses", "input.layout", "--coverage").exit_code == 1


def test_explain_says_what_why_and_what_tests_it(run):
    output = run("explain", "input.dtypes").output
    parts = ("demands", "MUST", "1 (filter and draw)", "tail of the", "contract 1.0", "one, two")
    assert [part for part in parts if part not in output] == []
    assert "departs" not in output
    assert "vLLM 0.25.1: Float32 logits are not copied" in run("explain", "input.untouched").output
    assert "to backends that declare seed" in run("explain", "seed.batch").output
    assert re.search(r"checks +none", run("explain", "top-p.off").output)


def test_explain_as_json_and_markdown(run):
    document = json.loads(run("explain", "top-p.keep", "--format", "json").stdout)
    assert document["checks"] == ["one"]
    assert document["clause"]["id"] == "top-p.keep"
    assert run("explain", "top-p.keep", "--format", "markdown").output.startswith("## `top-p.keep`")


def test_explain_unknown_clause_is_a_usage_error(run):
    result = run("explain", "top-p.keeps")
    assert result.exit_code == 2
    assert "no clause is called 'top-p.keeps'; did you mean top-p.keep" in result.stderr
