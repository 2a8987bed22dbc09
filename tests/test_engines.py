"""Adapters of other engines: what they share, and what is said where an engine is absent."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from refsampler.backends.engines import sglang, vllm
from refsampler.backends.engines.environments import ENVIRONMENTS
from refsampler.backends.engines.knobs import Knobs, alike
from refsampler.backends.engines.pytorch import MultinomialKernel
from refsampler.backends.engines.rows import Row, RowSession, refuse
from refsampler.backends.engines.stubs import hollow, load_file, stub
from refsampler.backends.protocol import Kernel, Rows, Session
from refsampler.backends.registry import BUILT_IN, BackendBroken, resolve
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import all_checks
from refsampler.conformance.subject import OpenSubject
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request

ROOT = Path(__file__).parents[1]
MODULES = {
    "llama-cpp": "xllamacpp",
    "lmdeploy": "lmdeploy",
    "mlx-lm": "mlx_lm",
    "onnxruntime-genai": "onnxruntime_genai",
    "sglang": "sglang",
    "vllm": "vllm",
}


class Heard:
    """Gives the number of tokens that it has heard; notes what is forgotten."""

    def __init__(self):
        self.forgotten = []

    def admit(self, request, _vocab, _seed):
        refuse(request, "an engine", but=("seed",))
        return []

    def heard(self, state, tokens):
        state.extend(tokens)

    def sample(self, rows, logits):
        logits.zero_()
        assert all(row.state == row.history for row in rows)
        return [len(row.state) for row in rows]

    def forget(self, state):
        self.forgotten.append(tuple(state))


def test_a_row_session_tells_each_row_its_own_history_once():
    session = RowSession(sampler := Heard(), 9, 1)
    assert isinstance(session, Session)
    session.add(5, Request(prompt=(1, 2), output=(3, PLACEHOLDER)))
    session.add(6, Request())
    session.accept([6, 5], [[7], [PLACEHOLDER, 8]])
    logits = torch.ones(2, 9)
    assert session.sample([6, 5], logits).sampled_token_ids.tolist() == [[1], [4]]
    assert bool(logits.all())
    session.remove(5)
    session.close()
    assert sampler.forgotten == [(1, 2, 3, 8), (7,)]


def test_a_row_session_refuses_by_name_and_keeps_nothing():
    session = RowSession(Heard(), 9, 1)
    with pytest.raises(ValueError, match="min_tokens = 2 is refused: an engine allows 0"):
        session.add(0, Request(SamplingParams(min_tokens=2)))
    session.add(0, Request(SamplingParams(seed=4)))
    with pytest.raises(ValueError, match="id = 0 is refused"):
        session.add(0, Request())


@pytest.mark.parametrize("engine", sorted(MODULES))
def test_an_engine_that_is_absent_says_how_to_get_it(engine):
    if importlib.util.find_spec(MODULES[engine]) is not None:
        pytest.skip("it is here")
    with pytest.raises(BackendBroken, match=f"make engine {engine}"):
        resolve(engine)


def test_every_environment_serves_a_backend_and_make_knows_it():
    assert {one.spec for one in ENVIRONMENTS.values()} <= set(BUILT_IN)
    line = next(
        one for one in (ROOT / "Makefile").read_text("utf-8").splitlines() if "ENGINES :=" in one
    )
    assert line.partition(":=")[2].split() == sorted(ENVIRONMENTS)


def test_a_file_of_a_package_full_of_stubs_can_be_imported(tmp_path):
    path = tmp_path / "sampler.py"
    path.write_text("from heavy_for_a_test.gpu import fast\nVALUE = fast.kernel is not None\n")
    stub("heavy_for_a_test")
    assert load_file("sampler_for_a_test", path).VALUE
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("other_heavy_for_a_test")
    for name in [one for one in sys.modules if one.endswith("_for_a_test")]:
        del sys.modules[name]


def test_a_module_below_hollow_packages_is_imported_and_they_are_not_run(tmp_path, monkeypatch):
    folder = tmp_path / "hollow_for_a_test" / "gpu"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").write_text("raise RuntimeError('no GPU')\n")
    (folder / "pure.py").write_text("from hollow_for_a_test.gpu import heavy\nVALUE = heavy.x\n")
    monkeypatch.syspath_prepend(tmp_path)
    hollow("an-engine", "hollow_for_a_test", "hollow_for_a_test.gpu")
    stub("hollow_for_a_test", real=("hollow_for_a_test.gpu.pure",))
    assert importlib.import_module("hollow_for_a_test.gpu.pure").VALUE is not None
    with pytest.raises(ModuleNotFoundError, match="make engine an-engine"):
        hollow("an-engine", "nowhere_for_a_test")
    for name in [one for one in sys.modules if one.startswith("hollow_for_a_test")]:
        del sys.modules[name]


def test_rows_of_equal_parameters_are_found_together_and_what_nobody_asks_is_off():
    nothing = torch.zeros(3, dtype=torch.int64)
    rows = Rows(
        top_k=torch.tensor([5, 9, 5], dtype=torch.int32),
        top_p=None,
        temperature=torch.tensor([0.5, 0.0, 0.5]),
        min_p=None,
        seed=nothing,
        step=nothing,
        seeded=nothing.bool(),
        generators={},
    )
    found = alike(rows, 3, 9)
    assert found == {Knobs(0.5, 5, 1.0, 0.0): [0, 2], Knobs(0.0, 9, 1.0, 0.0): [1]}
    assert [one.greedy for one in found] == [False, True]


class _Penalizers:
    """Notes what it is told, by row."""

    def __init__(self):
        self.heard = []
        self.penalizer_orchestrator = self

    def cumulate_output_tokens(self, tokens):
        self.heard.append(tokens.tolist())


def test_sglangs_batch_is_told_each_id_once_and_made_anew_where_rows_gained_unequally():
    """Rows stand in the batch in the order 2, 0, 1; the one in the middle has no penalties."""
    requests = [Request(SamplingParams(presence_penalty=one)) for one in (1.0, 0.0, 1.0)]
    rows = [Row(one, object()) for one in requests]
    batch = sglang._Running([row.state for row in rows], [2, 0, 1], [1, 0, 1], _Penalizers(), [])

    def follows(*outputs):
        return sglang._told(batch, rows, [[*one] for one in outputs])

    assert follows((7,), (), (8,))
    assert batch.info.heard == []
    assert follows((7, 3, 4), (), (8, 5, 6))
    assert batch.info.heard == [[5, 3, 0], [6, 4, 0]]
    assert follows((7, 3, 4), (), (8, 5, 6))
    assert not follows((7, 3, 4, 1), (), (8, 5, 6))
    assert len(batch.info.heard) == 2
    rows[1], rows[0] = rows[0], rows[1]
    assert not follows((), (7, 3, 4), (8, 5, 6))


def test_vllms_logprobs_end_where_its_frontend_stops_reading():
    """Asked: two, the row, nothing, one listed id; the widest row has three columns."""
    given = SimpleNamespace(
        logprob_token_ids=torch.zeros(4, 3, dtype=torch.int32),
        logprobs=torch.zeros(4, 3),
        selected_token_ranks=torch.ones(4, dtype=torch.int64),
    )
    tensors = vllm._logprobs(given, [2, -1, None, 1])
    assert tensors is not None
    assert tensors.valid.sum(dim=1).tolist() == [3, 3, 1, 2]
    assert bool(tensors.valid[:, 0].all())
    assert vllm._logprobs(None, []) is None


def test_multinomial_filters_and_draws_right():
    subject = OpenSubject(MultinomialKernel(), 11)
    for check in all_checks():
        if check.name in ("top-k-rows", "top-p-rows", "seeds-again"):
            for case in check.cases(subject.capabilities, 11):
                assert judge_case(subject, check, case).findings == ()


def test_the_numpy_kernel_of_the_documentation_is_right():
    text = (ROOT / "docs/array-kernels.md").read_text("utf-8")
    names: dict[str, object] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], names)  # noqa: S102 - our own page
    subject = OpenSubject(cast("Kernel", names["backend"]), 11)
    for check in all_checks():
        if check.name in ("top-k-rows", "top-p-rows"):
            for case in check.cases(subject.capabilities, 11):
                assert judge_case(subject, check, case).findings == ()
