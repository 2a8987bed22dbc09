"""SGLang 0.5.23, torch path: one row without a law takes the whole batch down.

`Sampler.forward` replaces NaN before this only with SGLANG_SANITIZE_NAN_LOGITS=1, which is off unless
set.  Needs the wheel's sampler.py and torch; the rest of sglang, which wants a GPU, is a mock.
"""

import importlib.util
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import torch

folder = importlib.util.find_spec("sglang").submodule_search_locations[0]


class Mocks(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.startswith("sglang") else None

    def create_module(self, spec):
        made = MagicMock(name=spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Mocks())
common = import_module("sglang.srt.utils.common")
for name in (
    "is_cuda",
    "is_hip",
    "is_musa",
    "is_npu",
    "is_xpu",
    "get_bool_env_var",
    "is_gfx1250_supported",
):
    getattr(common, name).return_value = False
import_module("sglang.srt.environ").envs.SGLANG_OPT_USE_GUMBEL_SAMPLE.get.return_value = False
spec = importlib.util.spec_from_file_location("sampler", f"{folder}/srt/layers/sampler.py")
sampler = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sampler)

logits = torch.zeros(2, 8)
print("two right rows:", sampler.sampling_from_probs_torch(logits.softmax(-1)).tolist())
for bad in (float("nan"), float("inf"), -float("inf")):
    logits[1] = bad
    try:
        print(f"a row of {bad}:", sampler.sampling_from_probs_torch(logits.softmax(-1)).tolist())
    except RuntimeError as error:
        print(f"a row of {bad}:", error)
