"""vLLM 0.25.1 on a CPU: seeds do nothing in a batch with an unseeded request.

`TopKTopPSampler.forward_cpu` takes a compiled draw, which knows no generators, unless every row has
one.  Greedy rows count as rows without.  Needs vLLM and torch, and a compiler for torch.compile.
"""

import torch
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

sampler = TopKTopPSampler()
print("path:", sampler.forward.__name__)


def drawn(rows, seeds):
    """Return the ids of flat rows over 1000 ids; seeds by row."""
    generators = {row: torch.Generator().manual_seed(seed) for row, seed in seeds.items()}
    ids, _ = sampler(torch.zeros(rows, 1000), generators, None, None)
    return ids.tolist()


for title, rows, seeds in (
    ("both rows seeded", 2, {0: 7, 1: 8}),
    ("the first seeded", 2, {0: 7}),
):
    print(title, [drawn(rows, seeds)[0] for _ in range(5)])
