"""SGLang's torch sampling path: its batch, its penalizers and its `Sampler`, without a scheduler.

Level 3, credited with a sampler: `SamplingParams` writes a request, `SamplingBatchInfo` makes the batch
and keeps it while its rows stay, the penalizers are told each output id, and batches of rows with
histories of other lengths are merged, as the scheduler does with a prefill.  Penalties act as in its
overlapped loop: frequency and presence, then repetition, over the output.

Everything else of `sglang` is a stub, and `torch.compile` is off.  Seeds need a deterministic server,
whose hash is a compiled kernel that the wheel does not have on the CPU; logprobs have no ranks; of the
masks it has logit bias and min tokens alone.  A greedy row is an argmax in a batch of such rows, and
top-k of 1 behind a sort beside random ones, so that of equal maxima it may get another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from refsampler.backends.engines.rows import Row, RowSession, refuse
from refsampler.backends.engines.stubs import hollow, stub
from refsampler.backends.protocol import Capabilities, Feature
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.semantics import profile

__all__ = ["Sglang", "backend"]

_OFFERED: Final = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_REAL: Final = (
    "sglang.srt.layers.sampler",
    "sglang.srt.sampling.penaltylib",
    "sglang.srt.sampling.sampling_batch_info",
    "sglang.srt.sampling.sampling_params",
)
_PLATFORMS: Final = (
    "get_bool_env_var",
    "is_cuda",
    "is_gfx1250_supported",
    "is_hip",
    "is_musa",
    "is_npu",
    "is_pin_memory_available",
    "is_xpu",
)


@dataclass(slots=True, weakref_slot=True)
class _Batch:
    """What `SamplingBatchInfo` reads of the scheduler's batch; penalizers refer to it weakly."""

    reqs: list[Any]
    device: str = "cpu"


@dataclass(slots=True)
class _Running:
    """The batch of the last step.

    Attributes:
        rows: requests in the order of the step.
        order: place of each of the engine's rows among them.
        told: how many output ids the penalizers know, 0 for a row without penalties.
        info: the engine's.
        batches: from which it was merged, kept alive.

    """

    rows: list[Any]
    order: list[int]
    told: list[int]
    info: Any
    batches: list[_Batch]


class Sglang:
    """Level 3, credited with a sampler.

    Raises:
        ModuleNotFoundError: sglang is not installed.
        RuntimeError: it answers known questions otherwise than it should.

    """

    def __init__(self) -> None:
        self._params, self._batch_info, self._sampler = _modules()
        self._running: _Running | None = None
        self.capabilities = Capabilities(
            name="sglang",
            version=f"{version('sglang')}, torch path",
            level=3,
            credit=2,
            semantics=profile("sglang"),
            features=frozenset({Feature.PENALTIES}),
        )
        self._check()

    def open(self, vocab: int, seed: int) -> RowSession[Any]:
        """Start a session over V = `vocab` ids, and seed torch's default generator."""
        torch.manual_seed(seed)
        return RowSession(self, vocab, seed)

    def admit(self, request: Request, _vocab: int, _seed: int) -> Any:
        """Return what the engine reads of a request; its own ranges are left to its frontend."""
        refuse(request, "sglang", but=_OFFERED)
        return SimpleNamespace(
            sampling_params=self._written(request.params),
            custom_logit_processor=None,
            return_sampling_mask=False,
            sampling_logprobs_mode=None,
        )

    def heard(self, _req: Any, _tokens: Sequence[int]) -> None:
        """Do nothing: the penalizers are told before the next step."""

    def forget(self, req: Any) -> None:
        """Let go of the batch in which a request ran."""
        if self._running is not None and any(one is req for one in self._running.rows):
            self._running = None

    def sample(self, rows: Sequence[Row[Any]], logits: Tensor) -> Sequence[int]:
        """Do what a step of the engine does after the model's."""
        running = self._batch(rows, logits.shape[1])
        given = logits[running.order]
        info = running.info.copy_for_forward()
        info.apply_logits_bias(given)
        output = SimpleNamespace(next_token_logits=given)
        drawn = self._sampler(output, info, False, [], [], torch.zeros(len(rows)))
        ids = torch.empty(len(rows), dtype=torch.int64)
        ids[running.order] = drawn.long()
        return [int(one) for one in ids]

    def _written(self, asked: SamplingParams) -> Any:
        return self._params.SamplingParams(
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k if asked.top_k > 0 else -1,
            min_p=asked.min_p,
            frequency_penalty=asked.frequency_penalty,
            presence_penalty=asked.presence_penalty,
            repetition_penalty=asked.repetition_penalty,
        )

    def _batch(self, rows: Sequence[Row[Any]], vocab: int) -> _Running:
        """Return the batch of these rows, the last one told what was accepted if it is the same."""
        known = [row.known if row.request.params.penalised else [] for row in rows]
        running = self._running
        same = running is not None and len(running.rows) == len(rows)
        if running is None or not same or not _told(running, rows, known):
            running = self._running = self._merged([row.state for row in rows], known, vocab)
        return running

    def _merged(self, reqs: list[Any], known: list[list[int]], vocab: int) -> _Running:
        """Merge a batch for each length of history, grown id by id."""
        lengths = [len(one) for one in known]
        order: list[int] = []
        batches: list[_Batch] = []
        merged: Any = None
        for length in sorted({*lengths}):
            places = [place for place, one in enumerate(lengths) if one == length]
            order += places
            batches.append(_Batch([reqs[place] for place in places]))
            info = self._batch_info.SamplingBatchInfo.from_schedule_batch(batches[-1], vocab)
            for step in range(length):
                _tell(info, [known[place][step] for place in places])
            if merged is None:
                merged = info
            else:
                merged.merge_batch(info)
                # behind it, as the scheduler does: penalizers prepare themselves for these
                batches[0].reqs += batches[-1].reqs
        return _Running(reqs, order, lengths, merged, batches)

    def _check(self) -> None:
        """Answer questions whose answers are known."""
        known = (
            (SamplingParams(temperature=0.0), 1),
            (SamplingParams(temperature=0.0, repetition_penalty=2.0), 2),
            (SamplingParams(temperature=0.0, presence_penalty=1.0), 2),
            (SamplingParams(temperature=0.0, frequency_penalty=0.25), 1),
            (SamplingParams(top_k=1), 1),
        )
        session = self.open(4, 1)
        for place, (params, _) in enumerate(known):
            session.add(place, Request(params, prompt=(2,), output=(1,)))
        logits = torch.tensor([[1.0, 4.0, 3.5, 0.0]]).repeat(len(known), 1)
        given = session.sample(range(len(known)), logits).sampled_token_ids.flatten().tolist()
        right = [one for _, one in known]
        session.close()
        if given != right:
            raise RuntimeError(f"sglang: ids {given}, {right} are right")


def _told(running: _Running, rows: Sequence[Row[Any]], known: list[list[int]]) -> bool:
    """Tell the penalizers what was accepted since; False if the batch is not that of these rows.

    A step tells one id of each row, so rows that have gained unequally need another batch.
    """
    if any(row.state is not req for row, req in zip(rows, running.rows, strict=True)):
        return False
    told = running.told
    penalised = [place for place, row in enumerate(rows) if row.request.params.penalised]
    gained = {len(known[place]) - told[place] for place in penalised}
    if not gained or gained == {0}:
        return True
    if len(gained) > 1 or min(gained) < 0:
        return False
    for step in range(gained.pop()):
        news = {place: known[place][told[place] + step] for place in penalised}
        _tell(running.info, [news.get(place, 0) for place in running.order])
    running.told = [len(one) for one in known]
    return True


def _tell(info: Any, tokens: list[int]) -> None:
    """Tell the penalizers one id of each row; what a row without penalties says changes nothing."""
    info.penalizer_orchestrator.cumulate_output_tokens(torch.tensor(tokens))


def _modules() -> tuple[Any, Any, Any]:
    """Import the parameters and the batch, and make the sampler, on no GPU of any kind."""
    packages = ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.sampling")
    hollow("sglang", *packages)
    stub("sglang", real=_REAL)
    # by name: an attribute of a stub package would be another stub
    for utilities in ("sglang.srt.utils", "sglang.srt.utils.common"):
        for name in _PLATFORMS:
            setattr(import_module(utilities), name, lambda *_, **__: False)
    _set("sglang.srt.utils", get_compiler_backend=lambda: "eager")
    off = SimpleNamespace(get=lambda: False)
    options = ("SGLANG_OPT_USE_GUMBEL_SAMPLE", "SGLANG_TRACE_SAMPLER_E2E")
    _set("sglang.srt.environ", envs=SimpleNamespace(**dict.fromkeys(options, off)))
    _set("sglang.srt.layers.dp_attention", is_dp_attention_enabled=lambda: False)
    _set("sglang.srt.managers.schedule_batch", ScheduleBatch=object)
    _set("sglang.srt.runtime_context", get_exec=lambda: _SERVER)
    # what it does where no GPU has a kernel of its own
    _set("sglang.kernels.ops.sampling", softmax=lambda logits: logits.softmax(dim=-1))
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    params, batch, sampler = (import_module(_REAL[place]) for place in (3, 2, 0))
    return params, batch, sampler.Sampler()


_SERVER: Final = SimpleNamespace(
    deterministic=SimpleNamespace(enable_deterministic_inference=False, rl_on_policy_target=None),
    kernel=SimpleNamespace(sampling_backend="pytorch"),
    features=SimpleNamespace(
        enable_custom_logit_processor=False, enable_watermark=False, sampling_mask_max_tokens=0
    ),
)
"""What the sampler reads of a server's options: their defaults, and the torch path."""


def _set(module: str, **attributes: Any) -> None:
    """Give a stub what is asked of it for real."""
    for name, value in attributes.items():
        setattr(import_module(module), name, value)


def backend() -> Sglang:
    """Return the engine; a factory, because sglang is optional."""
    return Sglang()
