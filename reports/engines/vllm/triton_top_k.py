"""vLLM 0.25.1's Triton filter: fewer than k ids where the k-th value is the row's smallest.

The search for a threshold begins at the smallest finite value and keeps what lies strictly above, so
ids equal to it are lost.  Runs in Triton's interpreter, in which loop indices are plain integers: the
one cast of such an index is left out.  Needs vLLM's file, Triton and torch.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language


def module(name, **fields):
    """Put a module in place of one of vLLM's."""
    made = sys.modules[name] = ModuleType(name)
    vars(made).update(fields, __path__=[])


folder = Path(importlib.util.find_spec("vllm").submodule_search_locations[0])
module("vllm")
module("vllm.triton_utils", tl=triton.language, triton=triton)
module("vllm.utils")
module("vllm.utils.math_utils", next_power_of_2=triton.next_power_of_2)
module("vllm.utils.platform_utils", num_compute_units=lambda _index: 4)
text = (folder / "v1/sample/ops/topk_topp_triton.py").read_text(encoding="utf-8")
with tempfile.TemporaryDirectory() as place:
    path = Path(place) / "topk_topp_triton.py"
    path.write_text(text.replace("row_id.to(tl.int64)", "row_id"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("topk_topp_triton", path)
    ops = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ops)
    minus = -float("inf")
    for row, k in (
        ([5.0, 4.0, 3.0, 2.0, 1.0], 3),
        ([1.0, 0.9, 0.9], 2),
        ([1.0, 0.9, 0.9, 0.9] + [minus] * 28, 2),
        ([1.0, 0.9, 0.9, 0.8] + [minus] * 28, 2),
    ):
        kept = ops.apply_top_k_top_p_triton(torch.tensor([row]), torch.tensor([k]), None)
        ids = kept[0].isfinite().nonzero().flatten().tolist()
        print(f"k = {k} of {row[:4]} and {len(row) - 4} more ids: keeps {ids}")
