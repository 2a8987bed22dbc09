"""`refsampler backends`, `law` and `trace` from the outside; laws worked by hand."""

import json
import math

import pytest
import torch
from click.testing import CliRunner

from refsampler.backends import registry
from refsampler.backends.protocol import Capabilities, Drawn
from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.cli import main
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.sampler import Sampler

CASE = Case(
    logits=LogitsRecipe(
        6,
        (
            RowRecipe(ids=(1, 4), values=(3.0, 2.0)),
            RowRecipe(ids=(0, 1, 2, 3), values=(4.0, 1.0, 1.0, 1.0), base=-40.0),
            RowRecipe(ids=(5, 2), values=(1.0, 1.0)),
            RowRecipe(ids=(0,), values=(math.nan,)),
        ),
    ),
    requests=(
        Request(SamplingParams(temperature=0.5, top_k=2)),
        Request(SamplingParams(top_p=0.95)),
        Request(SamplingParams(temperature=0, logit_bias=((5, 0.5),))),
        Request(SamplingParams()),
    ),
)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "case.json"
    file.write_bytes(encode_case(CASE))
    return str(file)


def run(*arguments, status=0, stdin=None):
    result = CliRunner().invoke(main, [*map(str, arguments)], input=stdin)
    assert result.exit_code == status, result.output
    return result.output


def shown(*arguments, **options):
    return json.loads(run(*arguments, "--format", "json", **options))


class Broken:
    """Keeps id 0 against the law, cuts id 4 of it, and draws id 0."""

    capabilities = Capabilities(name="broken", version="1", level=1)

    def draw(self, logits, _):
        kept = torch.full_like(logits, -torch.inf)
        kept[:, [0, 1]] = logits[:, [0, 1]]
        return Drawn(torch.zeros(len(logits), dtype=torch.int64), kept)


class Third:
    """The reference as a batch sampler."""

    capabilities = Capabilities(name="third", version="1", level=2)

    def sample(self, logits, metadata):
        return Sampler()(logits, metadata)


def raises(logits, rows):
    raise OSError("no device")


def test_the_law_of_a_random_row(path):
    # T = 1/2 makes 3, 2 into 6, 4: odds e^2, top-k 2 leaves these two.
    law = shown("law", path)
    assert law["case"] == CASE.id
    assert (law["valid"], law["greedy"], law["exact"]) == (True, False, True)
    assert (law["core"], law["hull"], law["lumped"]) == (2, 2, 0)
    assert [(one["id"], one["mark"], one["logit"]) for one in law["ids"]] == [
        (1, "core", 3.0),
        (4, "core", 2.0),
    ]
    probability = math.exp(2) / (math.exp(2) + 1)
    assert law["ids"][0]["probability"] == pytest.approx(probability, rel=1e-14)
    assert law["ids"][1]["logprob"] == pytest.approx(math.log(1 - probability), rel=1e-13)
    assert law["magnitude"] == 6


def test_a_tie_class_is_one_cell(path):
    # e^3 : 1 : 1 : 1 is .870 and thrice .0433; .870 + .0433 < .95 <= .870 + 2 * .0433: two of three.
    law = shown("law", path, "--row", 1)
    assert [(one["id"], one["mark"]) for one in law["ids"]] == [
        (0, "core"),
        (1, "lumped"),
        (2, "lumped"),
        (3, "lumped"),
    ]
    assert (law["lumped"], law["lump_count"]) == (3, 2)
    assert law["lump_probability"] == pytest.approx(2 / (math.exp(3) + 2), rel=1e-14)
    assert law["ids"][1]["probability"] is None
    text = run("law", path, "--row", 1)
    assert "lumped: 2 of 3 equal ids are kept, together with probability 0.090557" in text


def test_the_law_of_a_greedy_row_is_its_argmax(path):
    law = shown("law", path, "--row", 2)
    assert law["greedy"]
    assert [(one["id"], one["mark"], one["probability"]) for one in law["ids"]] == [(5, "core", 1)]


def test_a_row_without_a_law_says_so(path):
    law = shown("law", path, "--row", 3)
    assert not law["valid"]
    assert law["ids"] == []
    assert "no law: NaN, +inf or nothing finite" in run("law", path, "--row", 3)


def test_the_semantics_decide_which_ids_are_kept(path):
    # FlashInfer keeps all of a tie class at the edge of top-p.
    law = shown("law", path, "--row", 1, "--semantics", "flashinfer")
    assert [one["mark"] for one in law["ids"]] == ["core"] * 4


def test_top_bounds_what_is_shown_and_the_rest_is_counted(path):
    text = run("law", path, "--row", 1, "--top", 1)
    assert "and 3 ids more" in text
    assert len(shown("law", path, "--row", 1, "--top", 1)["ids"]) == 1


def test_a_case_comes_from_standard_input():
    assert shown("law", "-", stdin=encode_case(CASE))["case"] == CASE.id


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (b"{", "is no JSON"),
        (b'{"logits": {"vocab": 2, "rows": []}}', "is no case: Object missing required field"),
        (
            b'{"logits": {"vocab": 2, "rows": [{}]}, "requests": []}',
            "0 are given, allowed is one for each of 1 rows",
        ),
        (
            b'{"logits": {"vocab": 2, "rows": [{}]}, "requests": [{"params": {"top_p": 7}}]}',
            "top_p",
        ),
    ],
)
def test_a_bad_document_is_a_usage_error_that_says_why(document, complaint):
    text = " ".join(run("law", "-", stdin=document, status=2).replace("│", " ").split())
    assert complaint in text


def test_a_bad_row_or_file_is_a_usage_error(path, tmp_path):
    assert "4 is refused: allowed are the case's rows, 0 to 3" in run(
        "law", path, "--row", 4, status=2
    )
    assert "No such file" in run("law", tmp_path / "absent.json", status=2)


def test_markdown_is_a_pipe_table(path):
    lines = run("law", path, "--format", "markdown").splitlines()
    assert lines[2:4] == [
        "| id | mark | logit | probability | logprob |",
        "| " + "--- | " * 4 + "--- |",
    ]
    assert lines[4].startswith("| 1 | core | 3 | 0.880797 |")


def test_the_trace_walks_the_nine_steps_in_the_declared_order(path):
    steps = shown("trace", path)["steps"]
    assert [(one["place"], one["name"]) for one in steps] == [
        (1, "raw logprobs"),
        (2, "float32"),
        (3, "allowed"),
        (4, "bad_words"),
        (5, "min_tokens"),
        (5, "logit_bias"),
        (6, "repetition"),
        (6, "frequency"),
        (6, "presence"),
        (6, "thinking"),
        (7, "temperature"),
        (7, "min_p"),
        (7, "top_k"),
        (7, "top_p"),
        (8, "processed logprobs"),
    ]


def test_the_trace_shows_what_each_step_changed(path):
    trace = shown("trace", path)
    ids = trace["ids"]
    assert ids[:2] == [1, 4]
    assert sorted(ids) == list(range(6))
    by_name = {one["name"]: one for one in trace["steps"]}
    at = {name: dict(zip(ids, one["values"], strict=True)) for name, one in by_name.items()}
    assert (at["float32"][1], at["float32"][4], at["float32"][0]) == (3, 2, 0)
    # 0 / T stays 0, so that two of six change
    assert by_name["temperature"]["changed"] == 2
    assert (at["temperature"][1], at["temperature"][4]) == (6, 4)
    assert (by_name["top_k"]["live"], by_name["top_k"]["changed"]) == (2, 4)
    assert at["top_k"][0] is None
    assert at["processed logprobs"][1] == pytest.approx(-math.log1p(math.exp(-2)), rel=1e-14)
    assert (trace["admissible"], trace["likeliest"]) == (2, [1, 4])
    biased = shown("trace", path, "--row", 2)
    assert {one["name"]: one["changed"] for one in biased["steps"]}["logit_bias"] == 1


def test_a_tie_class_has_no_values_of_its_own_in_the_trace(path):
    trace = shown("trace", path, "--row", 1)
    last = dict(zip(trace["ids"], trace["steps"][-1]["values"], strict=True))
    assert last[1] is None
    assert last[0] == pytest.approx(-math.log1p(2 * math.exp(-3)), rel=1e-14)
    assert trace["steps"][-1]["live"] == 3
    lines = run("trace", path, "--row", 1, "--top", 4).splitlines()
    (line,) = (line for line in lines if "processed logprobs" in line)
    # step, two words, live, and of the four ids only the one in the core
    assert line.split() == ["8", "processed", "logprobs", "3", "-0.094923"]


def test_a_right_backend_agrees_with_the_law(path):
    subject = shown("trace", path, "native")["subject"]
    assert (subject["backend"], subject["level"]) == ("native", 1)
    assert subject["id"] in (1, 4)
    assert (subject["mark"], subject["outside"], subject["missing"]) == ("core", [], [])
    assert subject["lines"][0]["live"] == 2


def test_a_wrong_backend_is_shown_where_it_departs(path, monkeypatch):
    monkeypatch.setattr(registry, "BUILT_IN", {"broken": f"{__name__}:Broken"})
    trace = shown("trace", path, "broken")
    subject = trace["subject"]
    assert (subject["id"], subject["mark"]) == (0, "outside")
    assert (subject["outside"], subject["missing"]) == ([0], [4])
    assert dict(zip(trace["ids"], subject["lines"][0]["values"], strict=True))[1] == 6
    text = run("trace", path, "broken")
    assert (
        "broken (level 1): id 0 (outside), 1 ids kept outside the hull, 1 ids of the core" in text
    )


def test_what_a_backend_shows_of_a_greedy_row_is_not_compared(path, monkeypatch):
    monkeypatch.setattr(registry, "BUILT_IN", {"broken": f"{__name__}:Broken"})
    subject = shown("trace", path, "broken", "--row", 2)["subject"]
    assert (subject["id"], subject["lines"], subject["outside"]) == (5, [], [])


@pytest.mark.parametrize(("logprobs", "with_values"), [(2, {1, 4, 3}), (-1, {0, 1, 2, 3, 4, 5})])
def test_a_batch_sampler_shows_its_logprobs(tmp_path, monkeypatch, logprobs, with_values):
    # The sampled id 3 and the top two, 1 and 4, or the whole row.
    monkeypatch.setattr(registry, "BUILT_IN", {"third": f"{__name__}:Third"})
    params = SamplingParams(logprobs=logprobs, allowed_token_ids=(3,))
    file = tmp_path / "case.json"
    file.write_bytes(encode_case(Case(LogitsRecipe(6, CASE.logits.rows[:1]), (Request(params),))))
    trace = shown("trace", file, "third", "--top", 6)
    (line,) = trace["subject"]["lines"]
    values = dict(zip(trace["ids"], line["values"], strict=True))
    assert (line["place"], line["live"]) == (8, len(with_values))
    assert {one for one, value in values.items() if value is not None} == with_values
    log_total = math.log(math.exp(3) + math.exp(2) + 4)
    assert values[1] == pytest.approx(3 - log_total, abs=2e-6)
    assert trace["subject"]["mark"] == "core"


def test_a_backend_that_raises_is_reported_beside_the_law(path, monkeypatch):
    monkeypatch.setattr(Broken, "draw", staticmethod(raises))
    monkeypatch.setattr(registry, "BUILT_IN", {"broken": f"{__name__}:Broken"})
    text = run("trace", path, "broken")
    assert "broken (level 1): no id, OSError: no device" in text
    assert "processed logprobs" in text


def test_the_trace_follows_the_backends_own_order(path):
    pytest.importorskip("transformers")
    trace = shown("trace", path, "transformers")
    assert trace["semantics"] == "transformers"
    assert [one["name"] for one in trace["steps"][-5:-1]] == [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
    ]


def test_a_row_without_a_law_has_a_trace_and_no_verdict(path):
    text = run("trace", path, "native", "--row", 3)
    assert "no law: NaN, +inf or nothing finite" in text
    assert text.splitlines()[-1] == "native (level 1): id 0"


def test_an_unknown_backend_is_a_usage_error_and_a_broken_one_exits_4(path, monkeypatch):
    assert "'nativ' is not known" in run("trace", path, "nativ", status=2)
    monkeypatch.setattr(registry, "BUILT_IN", {"broken": f"{__name__}:raises"})
    assert "cannot be opened: TypeError" in run("trace", path, "broken", status=4)


def test_backends_are_listed_with_what_they_declare():
    native = next(one for one in shown("backends") if one["name"] == "native")
    assert native["capabilities"]["level"] == 1
    assert native["capabilities"]["semantics"]["profile"] == "vllm"
    assert "seed" in native["capabilities"]["features"]
    lines = run("backends").splitlines()
    assert lines[0].split() == [
        "name",
        "level",
        "version",
        "device",
        "semantics",
        "folds",
        "features",
    ]
    assert {"cpu", "native"} <= {line.split()[0] for line in lines[1:] if line}
    assert lines[-1].startswith("The first row that fits and is installed is taken; here: ")


def test_the_table_of_paths_is_shown_by_itself():
    dispatch = shown("backends", "--dispatch")
    assert dispatch["table"][-1]["path"] == "native"
    assert dispatch["here"]["path"] in {route["path"] for route in dispatch["table"]}
    lines = run("backends", "--dispatch").splitlines()
    assert lines[0].split()[:2] == ["device", "path"]


def test_a_backend_that_does_not_open_is_listed_with_the_reason(monkeypatch):
    monkeypatch.setattr(registry, "BUILT_IN", {"broken": f"{__name__}:raises"})
    text = run("backends", "--format", "markdown")
    assert "| broken | - | not available: backend 'broken' cannot be opened: TypeError" in text
    (listed,) = (one for one in shown("backends") if one["name"] == "broken")
    assert listed["capabilities"] is None
    assert "TypeError" in listed["reason"]
