"""onnxruntime-genai: `Generator.set_logits` on a decoder of nothing, then `generate_next_token`.

Level 1, min-p apart, which the engine does not have: temperature, top-k, top-p and the draw.  Rows of
equal parameters share a generator of at most 32; every call makes new ones, seeded by torch's default
generator, since a generator appends what it draws.  So requests have no seeds of their own here, and
the id of the end, which must be one of the vocabulary, is drawn like any other.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.backends.engines.knobs import alike
from refsampler.backends.protocol import Capabilities, Fold, Rows
from refsampler.semantics import VLLM_ORDER, profile

__all__ = ["OnnxruntimeGenaiKernel", "backend"]

_MOST_ROWS: Final = 32


class OnnxruntimeGenaiKernel:
    """Level 1: what `generate_next_token` does with given logits.

    Raises:
        ModuleNotFoundError: onnxruntime-genai is not installed.
        RuntimeError: it answers known questions otherwise than it should.

    """

    def __init__(self) -> None:
        try:
            found = version("onnxruntime-genai")
        except PackageNotFoundError as error:
            words = "onnxruntime-genai is not installed: make engine onnxruntime-genai"
            raise ModuleNotFoundError(words, name="onnxruntime_genai") from error
        # Top-k acts before the temperature, which changes nothing; with min-p the pipeline does both.
        semantics = replace(profile("onnxruntime-genai"), order=VLLM_ORDER)
        self.capabilities = Capabilities(
            name="onnxruntime-genai",
            version=found,
            level=1,
            semantics=semantics,
            folds=frozenset({Fold.GREEDY, Fold.TEMPERATURE, Fold.TOP_K, Fold.TOP_P}),
        )
        self._folder = tempfile.TemporaryDirectory(prefix="refsampler-onnx-")
        self._models: dict[int, Any] = {}
        self._check()

    def draw(self, logits: Float32[Tensor, "B V"], rows: Rows) -> Tensor:
        """Return int64 ids; the input stays as it is."""
        count, vocab = logits.shape
        ids = torch.empty(count, dtype=torch.int64)
        values = logits.numpy()
        for knobs, places in alike(rows, count, vocab).items():
            # 0 is off; of one id nothing can be cut
            asked = knobs.temperature, 0 if vocab == 1 else knobs.top_k % vocab, knobs.top_p
            for start in range(0, len(places), _MOST_ROWS):
                some = places[start : start + _MOST_ROWS]
                ids[some] = torch.from_numpy(self._step(values[some], *asked).astype(np.int64))
        return ids

    def _step(self, values: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
        """Return the next ids of a generator that is given these logits."""
        import onnxruntime_genai as og

        count, width = values.shape
        asked = og.GeneratorParams(self._model(width))
        random = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        seed = int(torch.randint(1, 2**31 - 1, ()))
        asked.set_search_options(
            do_sample=temperature > 0,
            batch_size=count,
            max_length=4,
            random_seed=seed,
            **(random if temperature > 0 else {}),
        )
        generator = og.Generator(self._model(width), asked)
        generator.append_tokens(np.zeros((count, 1), np.int32))
        generator.get_logits()
        generator.set_logits(values[:, None])
        generator.generate_next_token()
        return np.array(generator.get_next_tokens())

    def _model(self, width: int) -> Any:
        import onnxruntime_genai as og

        if width not in self._models:
            folder = Path(self._folder.name) / str(width)
            _write_decoder(folder, width)
            self._models[width] = og.Model(str(folder))
        return self._models[width]

    def _check(self) -> None:
        values = np.array([[0, 3, 9, 1]], np.float32)
        given = [
            int(self._step(values, *knobs)[0]) for knobs in ((0, 0, 1), (1, 1, 1), (1, 0, 0.5))
        ]
        if given != [2, 2, 2]:
            raise RuntimeError(f"onnxruntime-genai: ids {given}, [2, 2, 2] are right")


def _write_decoder(folder: Path, width: int) -> None:
    """Write a decoder whose logits are zeros [batch, length, width], and a cache it only passes on."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def given(name: str, kind: int, *shape: object) -> Any:
        return helper.make_tensor_value_info(name, kind, list(shape))

    def constant(name: str, *values: int) -> Any:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    zeros = numpy_helper.from_array(np.zeros(1, np.float32))
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["batch_length"]),
        helper.make_node("Concat", ["batch_length", "width"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["logits"], value=zeros),
        helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["numbers", "cache_shape"], ["new"]),
    ]
    cache = [f"past_key_values.0.{part}" for part in ("key", "value")]
    present = [f"present.0.{part}" for part in ("key", "value")]
    for before, after in zip(cache, present, strict=True):
        nodes.append(helper.make_node("Concat", [before, "new"], [after], axis=2))
    inputs = [
        given("input_ids", TensorProto.INT64, "batch", "length"),
        given("attention_mask", TensorProto.INT64, "batch", "total"),
        *(given(name, TensorProto.FLOAT, "batch", 1, "past", 1) for name in cache),
    ]
    outputs = [
        given("logits", TensorProto.FLOAT, "batch", "length", width),
        *(given(name, TensorProto.FLOAT, "batch", 1, "total", 1) for name in present),
    ]
    constants = [constant("width", width), constant("cache_shape", 0, 1, -1, 1)]
    graph = helper.make_graph(nodes, "nothing", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir()
    onnx.save(model, str(folder / "model.onnx"))
    (folder / "genai_config.json").write_text(json.dumps(_configuration(width)), encoding="utf-8")


def _configuration(width: int) -> Mapping[str, object]:
    names = {"key": "past_key_values.%d.key", "value": "past_key_values.%d.value"}
    decoder = {
        "session_options": {"log_id": "refsampler", "provider_options": []},
        "filename": "model.onnx",
        "head_size": 1,
        "hidden_size": 1,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": names["key"],
            "past_value_names": names["value"],
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    model = {
        "type": "llama",
        "vocab_size": width,
        "bos_token_id": 0,
        "eos_token_id": [width - 1],
        "pad_token_id": 0,
        "context_length": 100_000,
        "decoder": decoder,
    }
    search = {"do_sample": True, "max_length": 64, "past_present_share_buffer": False}
    return {"model": model, "search": search}


def backend() -> OnnxruntimeGenaiKernel:
    """Return the kernel; a factory, because onnxruntime-genai is optional."""
    return OnnxruntimeGenaiKernel()
