"""Time the verifier on this GPU: ``python -m refsampler.backends.triton.bench_verifier``.

As `bench`: medians of CUDA-graph replays on inputs that the L2 does not keep.  The bonus id is drawn
inside.  The floor is the time to read target and draft rows once at the copy bandwidth that the same
run measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.backends.triton.bench import VOCAB, copy_bandwidth, eager_us, graph_us
from refsampler.backends.triton.kernel import TritonKernel
from refsampler.backends.triton.verifier import TritonVerifier
from refsampler.backends.triton.verify import Drafts, Layout
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.request import Request

__all__ = ["CASES", "Step", "main"]


@dataclass(frozen=True, slots=True)
class Step:
    """A batch to verify.

    Attributes:
        name: as shown.
        requests, drafts: B, and how many drafts each has.
        laws: whether the drafts come with laws; else they are certain.
        near: noise of the draft model's logits beside the target's; 0 accepts nearly everything.
        k, p: filters of every target; 0 and 1 are off.

    """

    name: str
    requests: int = 256
    drafts: int = 4
    laws: bool = True
    near: float = 0.7
    k: int = 0
    p: float = 1.0


CASES = (
    Step("laws given"),
    Step("laws given, draft law = target law", near=0.0),
    Step("laws given, another law altogether", near=3.0),
    Step("certain drafts", laws=False),
    Step("laws given, B = 1", requests=1),
    Step("laws given, B = 64", requests=64),
    Step("laws given, 1 draft", drafts=1),
    Step("laws given, 8 drafts", drafts=8),
    Step("laws given, k 50", k=50),
    Step("laws given, k 50, p .9", k=50, p=0.9),
    Step("laws given, p .9", p=0.9),
)


@dataclass(frozen=True, slots=True)
class _Input:
    logits: Tensor
    laws: Tensor | None
    ids: Tensor


def _input(step: Step) -> _Input:
    """Return one batch; drafts are drawn from their laws."""
    size = step.drafts + 1
    logits = torch.randn(step.requests * size, VOCAB, device="cuda")
    target = logits.view(step.requests, size, VOCAB)[:, :-1].reshape(-1, VOCAB)
    laws = (target + step.near * torch.randn_like(target)).softmax(-1)
    ids = (laws / torch.empty_like(laws).exponential_()).argmax(-1).to(torch.int32)
    return _Input(logits, laws if step.laws else None, ids)


def _rows(step: Step) -> Rows:
    count = step.requests
    generator = torch.Generator()
    return Rows(
        top_k=torch.full((count,), step.k, dtype=torch.int32, device="cuda") if step.k else None,
        top_p=torch.full((count,), step.p, device="cuda") if step.p < 1 else None,
        temperature=torch.ones(count, device="cuda"),
        min_p=None,
        seed=torch.arange(count, device="cuda"),
        step=torch.zeros(count, dtype=torch.int64, device="cuda"),
        seeded=torch.ones(count, dtype=torch.bool, device="cuda"),
        generators=dict.fromkeys(range(count), generator),
    )


def _verify(
    kernel: TritonKernel, rows: Rows, behind: Rows, layout: Layout, noise: Tensor, given: _Input
) -> Tensor:
    """Draw the bonus ids, at a later step of each request, then verify."""
    most = layout.most
    bonus = kernel.draw(given.logits[most :: most + 1], behind).ids
    assert rows.temperature is not None
    return kernel.verify(
        Drafts(
            given.logits,
            given.ids,
            given.laws,
            layout,
            bonus,
            rows.temperature,
            rows.top_k,
            rows.top_p,
            rows.seed,
            rows.step,
            rows.seeded,
            noise,
        )
    )


def _time(kernel: TritonKernel, step: Step, bandwidth: float) -> None:
    """Print one row of the table."""
    target = step.requests * (step.drafts + 1) * VOCAB * 4
    draft = step.requests * step.drafts * VOCAB * 4 * step.laws
    floor = (target + draft) / bandwidth
    count = min(64, max(3, -(-(2**27) // target)))
    inputs = [_input(step) for _ in range(count)]
    layout = Layout.of([step.drafts] * step.requests, torch.device("cuda"))
    rows = _rows(step)
    behind = replace(rows, step=rows.step + step.drafts)
    call = partial(_verify, kernel, rows, behind, layout, torch.zeros_like(rows.seed))
    emitted = torch.cat([(call(one) >= 0).sum(-1) for one in inputs]).float().mean().item()
    us = graph_us(call, inputs)
    cells = (step.name, f"{us:.0f}", f"{floor:.0f}", f"{us / floor:.2f}", f"{emitted:.2f}")
    print(f"| {' | '.join(cells)} |", flush=True)


def _time_whole(step: Step) -> None:
    """Print what a call of `verify` costs, checks of its arguments and metadata included."""
    verifier, given = TritonVerifier("cuda"), _input(step)
    drafts = given.ids.view(step.requests, step.drafts).tolist()
    params = SamplingParams()
    metadata = SamplingMetadata.from_requests(
        [Request(params, drafts=tuple(ids)) for ids in drafts],
        VOCAB,
        device="cuda",
        speculative=True,
    )
    us = eager_us(lambda: verifier.verify(given.ids, given.laws, given.logits, metadata), repeats=3)
    print(f"\nA call of `verify`, {step.name}: {us / 1e3:.1f} ms.")


def main() -> None:
    """Print the table."""
    import triton

    torch.manual_seed(0)
    kernel = TritonKernel("cuda")
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, triton {triton.__version__}, V = {VOCAB}")
    bandwidth = copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e6:.2f} TB/s, read and written\n")
    print("| B = 256, 4 drafts, unless named | µs | floor | over floor | ids emitted |")
    print("| --- | --- | --- | --- | --- |")
    for step in CASES:
        _time(kernel, step, bandwidth)
    _time_whole(CASES[0])


if __name__ == "__main__":
    main()
