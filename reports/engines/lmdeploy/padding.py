"""lmdeploy 0.18.0: what pads a row's history or its bad words acts on id 0.

Needs lmdeploy and torch only; the packages above the two modules want a GPU and are entered as folders.
"""

import asyncio
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import torch

ROOT = importlib.util.find_spec("lmdeploy").submodule_search_locations[0]
for name in ("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.engine"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = ["/".join([ROOT, *name.split(".")[1:]])]


class Absent(MetaPathFinder, Loader):
    """Stands in for packages of other parts of the engine, where those are not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in (
            "PIL",
            "psutil",
            "pybase64",
            "requests",
            "urllib3",
            "xgrammar",
        ):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        made = MagicMock(name=spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module):
        pass


sys.meta_path.append(Absent())

from lmdeploy.pytorch.engine.logits_process import FusedLogitsProcessor  # noqa: E402
from lmdeploy.pytorch.strategies.ar.sampling import ARSamplingStrategy  # noqa: E402


def sequence(output=(), bad_words=(), repetition_penalty=1.0):
    asked = SimpleNamespace(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=repetition_penalty,
        bad_words=list(bad_words),
        stop_words=[],
        ignore_eos=False,
        min_new_tokens=0,
        random_seed=None,
        response_format=None,
        logits_processors=None,
        num_logprobs=-1,
        repetition_ngram_size=0,
        repetition_ngram_threshold=0,
    )
    return SimpleNamespace(
        sampling_param=asked,
        num_valid_ids=1 + len(output),
        num_new_tokens=len(output),
        generated_ids=np.array(output, np.int64),
        valid_ids=np.array([1, *output]),
        session=SimpleNamespace(session_id=0),
        seq_id=0,
    )


def processed(*sequences):
    inputs = ARSamplingStrategy(0).make_sampling_inputs(list(sequences)).to_device("cpu")
    scores, _ = asyncio.run(FusedLogitsProcessor(inputs)(torch.full((len(sequences), 8), 2.0)))
    return scores[0].tolist()


print("repetition penalty 2, output (5,):")
print("  alone                     ", processed(sequence((5,), repetition_penalty=2.0)))
print(
    "  beside output (6, 7)      ",
    processed(sequence((5,), repetition_penalty=2.0), sequence((6, 7), repetition_penalty=2.0)),
)
print("bad word 0:")
print("  alone                     ", processed(sequence(bad_words=[0])))
print(
    "  beside bad words 3 and 4  ",
    processed(sequence(bad_words=[0]), sequence(bad_words=[3, 4])),
)
