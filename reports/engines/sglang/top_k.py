"""SGLang 0.5.23: a legal top_k of 2^31 stops the batch.

`SamplingParams.verify` admits any top_k of at least 1, and `SamplingBatchInfo.from_schedule_batch` makes
an int32 tensor of the batch's values.  Needs the wheel's files and torch; what they import of the rest
of sglang is a mock.
"""

import importlib.util
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

folder = Path(importlib.util.find_spec("sglang").submodule_search_locations[0])
WANTED = ("penaltylib", "sampling_batch_info", "sampling_params")


class Mocks(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        wanted = any(name.startswith(f"sglang.srt.sampling.{one}") for one in WANTED)
        if wanted or not name.startswith("sglang"):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        made = MagicMock(name=spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module):
        pass


for name in ("sglang", "sglang.srt", "sglang.srt.sampling"):
    package = ModuleType(name)
    package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
    sys.modules[name] = package
sys.meta_path.insert(0, Mocks())
import_module("sglang.srt.utils").get_compiler_backend.return_value = "eager"
import_module("sglang.srt.utils.common").is_pin_memory_available.return_value = False
params = import_module("sglang.srt.sampling.sampling_params")
batch = import_module("sglang.srt.sampling.sampling_batch_info")
options = import_module("sglang.srt.runtime_context").get_exec.return_value
options.deterministic.enable_deterministic_inference = False
options.features.enable_custom_logit_processor = options.features.enable_watermark = False
import_module("sglang.srt.managers.schedule_batch").ScheduleBatch = type("ScheduleBatch", (), {})


class Batch:
    device = "cpu"

    def __init__(self, *top_ks):
        self.reqs = []
        for top_k in top_ks:
            asked = params.SamplingParams(top_k=top_k, watermark=None)
            asked.verify(vocab_size=32_000)
            self.reqs.append(
                SimpleNamespace(
                    sampling_params=asked,
                    custom_logit_processor=None,
                    return_sampling_mask=False,
                )
            )


for top_ks in ((50, 2**31 - 1), (50, 2**31)):
    try:
        info = batch.SamplingBatchInfo.from_schedule_batch(Batch(*top_ks), 32_000)
        print(f"top_k of {top_ks}: a batch with {info.top_ks.tolist()}")
    except RuntimeError as error:
        print(f"top_k of {top_ks}: {error}")
