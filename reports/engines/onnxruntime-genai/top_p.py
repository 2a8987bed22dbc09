"""onnxruntime-genai 0.18.0: top-p without top-k does nothing from a certain size of the vocabulary on.

Needs onnxruntime-genai, and onnx to write a decoder whose logits `set_logits` replaces.
"""

import collections
import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_genai as og
from onnx import TensorProto, helper, numpy_helper


def decoder(folder, width):
    """Write a decoder of zeros."""

    def value(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, list(shape))

    def constant(name, *values):
        return numpy_helper.from_array(np.array(values, np.int64), name)

    cache = [f"past_key_values.0.{part}" for part in ("key", "value")]
    present = [f"present.0.{part}" for part in ("key", "value")]
    zeros = numpy_helper.from_array(np.zeros(1, np.float32))
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["sizes"]),
        helper.make_node("Concat", ["sizes", "width"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["logits"], value=zeros),
        helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["numbers", "cache_shape"], ["new"]),
        *(
            helper.make_node("Concat", [old, "new"], [out], axis=2)
            for old, out in zip(cache, present, strict=True)
        ),
    ]
    inputs = [value("input_ids", 7, "b", "s"), value("attention_mask", 7, "b", "t")]
    inputs += [value(name, 1, "b", 1, "p", 1) for name in cache]
    outputs = [value("logits", 1, "b", "s", width)]
    outputs += [value(name, 1, "b", 1, "t", 1) for name in present]
    constants = [constant("width", width), constant("cache_shape", 0, 1, -1, 1)]
    graph = helper.make_graph(nodes, "nothing", inputs, outputs, constants)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), f"{folder}/model.onnx")
    part = {
        "session_options": {"provider_options": []},
        "filename": "model.onnx",
        "head_size": 1,
        "hidden_size": 1,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        "inputs": {
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    model = {
        "type": "llama",
        "vocab_size": width,
        "bos_token_id": 0,
        "eos_token_id": [0],
        "pad_token_id": 0,
        "context_length": 100,
        "decoder": part,
    }
    search = {"do_sample": True, "max_length": 9, "past_present_share_buffer": False}
    text = json.dumps({"model": model, "search": search})
    Path(folder, "genai_config.json").write_text(text, encoding="utf-8")


def drawn(width, **options):
    """Draw 300 times from masses 0.48, 0.32 and 0.2, which top-p 0.6 cuts to the first two."""
    with tempfile.TemporaryDirectory() as folder:
        decoder(folder, width)
        model = og.Model(folder)
        logits = np.full((1, 1, width), -np.inf, np.float32)
        logits[0, 0, 1:4] = np.log([0.48, 0.32, 0.2])
        counts = collections.Counter()
        for seed in range(300):
            asked = og.GeneratorParams(model)
            asked.set_search_options(do_sample=True, max_length=4, random_seed=seed + 1, **options)
            generator = og.Generator(model, asked)
            generator.append_tokens(np.zeros((1, 1), np.int32))
            generator.get_logits()
            generator.set_logits(logits)
            generator.generate_next_token()
            counts[int(generator.get_next_tokens()[0])] += 1
    return dict(sorted(counts.items()))


for options in ({"top_k": 0, "top_p": 0.6}, {"top_k": 3, "top_p": 0.6}):
    for width in (64, 65, 32000):
        print(options, "V =", width, drawn(width, **options))
