"""Minimal cases and scripts: what failed fails again, in one row, without refsampler."""

import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from refsampler.backends.protocol import DType
from refsampler.conformance.case import Case, Layout
from refsampler.conformance.cli import main
from refsampler.conformance.designed.build import batch, peak, request, row
from refsampler.conformance.minimise import minimise, smaller_cases
from refsampler.conformance.scripts.rows import Shown
from refsampler.conformance.scripts.rows import row_script as script
from tests.broken_samplers import OneMore, RightSampler

ROOT = Path(__file__).parents[1]
FOREVER = math.inf

# Needs torch only: keeps k + 1 ids where it should keep k.
KERNEL = """
import torch

class Kernel:
    capabilities = None
    def draw(self, logits, rows):
        k = rows.top_k.long()[:, None].clamp(max=logits.shape[1] - 1)
        kth = logits.sort(dim=-1, descending=True).values.gather(-1, k)
        kept = logits.masked_fill(logits < kth, -torch.inf)
        return kept.softmax(dim=-1).multinomial(1).squeeze(-1)

backend = Kernel()
"""


def big():
    rows = [
        (row({1: 3.0, 4: 1.0, 5: 0.5}, base=-4.0), request(top_k=2, top_p=0.9, prompt=(1, 2, 3))),
        (peak(7), request(temperature=0.0)),
        (peak(8), request(seed=3, min_p=0.1)),
    ]
    return batch(40, rows * 8, "top-k.keep", calls=8, layout=Layout.STRIDED, dtype=DType.FLOAT16)


def test_a_case_shrinks_to_what_the_failure_needs():
    def fails(case: Case) -> bool:
        kept = [one for one in case.requests if one.params.top_k == 2]
        return bool(kept) and any(5 in one.ids for one in case.logits.rows)

    smallest = minimise(big(), fails, fails, deadline=FOREVER)
    assert smallest is not None
    assert smallest.requests == (request(top_k=2),)
    assert smallest.logits.rows == (row({5: 0.5}, base=-4.0),)
    assert smallest.logits.vocab == 6
    assert (smallest.calls, smallest.layout) == (1, Layout.CONTIGUOUS)
    assert smallest.dtype is DType.FLOAT32


def test_what_fails_once_only_is_not_shown():
    def one_row(case: Case) -> bool:
        return len(case.requests) >= 1

    # nothing is confirmed; then only cases of three rows and more are: the next larger is shown
    assert minimise(big(), one_row, lambda _: False, deadline=FOREVER) is None
    larger = minimise(big(), one_row, lambda case: len(case.requests) > 2, deadline=FOREVER)
    assert larger is not None
    assert len(larger.requests) == 8


def test_shrinking_stops_at_its_limits():
    asked: list[Case] = []

    def fails(case: Case) -> bool:
        asked.append(case)
        return False

    minimise(big(), fails, fails, deadline=FOREVER, candidates=5)
    assert len(asked) == 5
    assert minimise(big(), lambda _: True, lambda _: True, deadline=time.monotonic()) is None


def test_smaller_cases_are_legal_and_build():
    for case in smaller_cases(big()):
        assert case.build_logits().shape == (len(case.requests), case.logits.vocab)
        for one in case.requests:
            one.verify(case.logits.vocab)


@pytest.mark.parametrize("layout", [Layout.CONTIGUOUS, Layout.SLICED])
def test_a_kernels_script_needs_torch_and_the_adapter_only(tmp_path, layout):
    case = batch(300, [(row({9: 1.0, 3: 1.0, 4: 0.5}), request(top_k=2))] * 64, layout=layout)
    shown = Shown("top-k.keep", case, f"{case.id}/0", "one of {3, 9}", "id 4", judged=True)
    text = script(shown, "one_more_alone:backend", OneMore.capabilities, 3)
    (tmp_path / "one_more_alone.py").write_text(KERNEL)
    # whoever imports refsampler there gets an ImportError
    blocked = "import sys; sys.modules['refsampler'] = None\n"
    (tmp_path / "blocked.py").write_text(blocked + text)
    ran = run_script(tmp_path, "blocked.py")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "id 4, allowed are 2 ids [3, 9]" in ran.stdout
    # a kernel that keeps k ids is not blamed
    (tmp_path / "one_more_alone.py").write_text(KERNEL.replace("[:, None]", "[:, None].sub(1)"))
    ran = run_script(tmp_path, "blocked.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def run_script(folder, name):
    return subprocess.run(
        [sys.executable, "-W", "ignore", name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
    )


def test_a_script_hands_over_the_bits_of_the_case():
    values = {3: -0.1, 4: math.inf, 5: -65504.0, 6: math.nan, 7: 2.0**-30}
    for vocab, dtype in ((9, DType.FLOAT32), (400, DType.BFLOAT16)):
        case = batch(vocab, [(row(values), request(top_p=0.3))] * 2, dtype=dtype)
        case = replace(case, layout=Layout.SLICED)
        shown = Shown("top-p.keep", case, "k", "x", 'y """', judged=False)
        text = script(shown, "native", RightSampler.capabilities, 1)
        namespace: dict[str, object] = {}
        exec(text.partition("def ask(")[0], namespace)  # noqa: S102 - the script under test
        built = namespace["logits"]()  # type: ignore[operator]  # defined by the script
        exact = case.build_logits()
        assert built.stride() == exact.stride() or not built.is_contiguous()
        torch.testing.assert_close(built, exact, rtol=0, atol=0, equal_nan=True)
        assert namespace["REQUESTS"] == case.requests


@pytest.mark.parametrize(
    ("name", "clause", "glob"),
    [
        ("OneMore", "top-k.keep", "top-k.keep"),
        ("PastTheEnd", "output.range", "greedy.argmax"),
        ("AllowListIgnored", "mask.allowed", "mask.allowed"),
    ],
)
def test_check_replay_and_script_show_the_same(tmp_path, monkeypatch, name, clause, glob):
    monkeypatch.chdir(tmp_path)

    def refsampler(*words):
        return CliRunner().invoke(main, [*words, "--in-process"])

    ran = refsampler("check", f"tests.broken_samplers:{name}", "--clause", glob, "--seed", "3")
    assert ran.exit_code == 1, ran.output
    (path,) = tmp_path.glob(f"reports/runs/*/repro/{clause}-*.py")
    case = path.stem.rpartition("-")[2]
    assert f"refsampler replay {case}" in ran.output
    again = refsampler("replay", case)
    assert again.exit_code == 1, again.output
    assert f"FAIL {clause}" in again.output
    # the minimal case has one row, in one or two arrangements
    assert int(again.output.partition(" draws")[0].rpartition(" ")[2]) <= 2
    command = [sys.executable, "-W", "ignore", str(path)]
    alone = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert alone.returncode == 1, alone.stdout + alone.stderr


def test_a_wrong_law_has_a_script_that_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["check", "tests.broken_samplers:Warmer", "--clause", "draw.law", "--seed", "3"]
    words += ["--jobs", "1"]
    ran = CliRunner().invoke(main, [*words, "--in-process"])
    assert ran.exit_code == 1, ran.output
    (path,) = tmp_path.glob("reports/runs/*/repro/draw.law-*.py")
    again = CliRunner().invoke(main, ["replay", path.stem.rpartition("-")[2], "--in-process"])
    assert again.exit_code == 1, again.output
    assert "FAIL draw.law" in again.output
    for name, code in (("Warmer", 1), ("RightKernel", 0)):
        text = path.read_text().replace("Warmer", name)
        (tmp_path / "law.py").write_text(text)
        command = [sys.executable, "-W", "ignore", str(tmp_path / "law.py")]
        alone = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert alone.returncode == code, alone.stdout + alone.stderr
