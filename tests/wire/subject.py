"""A right sampler in about thirty lines, which knows of refsampler nothing but the wire."""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

KNOWS = {"temperature", "temperature_floor", "top_k", "top_p", "min_p", "max_tokens"}


def sample(x, noise, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, **_):
    if temperature < 1e-5:
        return x.argmax()
    x = x.astype(np.float64) / np.float32(temperature)
    p = np.exp(x - x.max())
    p[p < np.float32(min_p) * p.max()] = 0
    if 0 < top_k < len(x):
        p[p < np.sort(p)[-top_k]] = 0
    if top_p < 1:
        order = np.argsort(-p, kind="stable")
        above = np.cumsum(p[order]) - p[order]
        p[order[above >= np.float32(top_p) * p.sum()]] = 0
    return np.where(p > 0, p / noise.exponential(size=len(x)), -1).argmax()


def answer(ask, state):
    op, session = ask["op"], ask.get("session")
    if op == "describe":
        state["folder"] = Path(ask["folder"])
        declared = {"name": "thirty-lines", "version": "1", "level": 3, "credit": 2}
        return {"reply": "described", "wire": 1, "capabilities": declared}
    if op == "open":
        state[session] = ({}, np.random.default_rng(ask["seed"]))
    elif op == "add":
        params = ask["request"].get("params", {})
        if params.keys() - KNOWS:
            words = f"{sorted(params.keys() - KNOWS)} refused: allowed are {sorted(KNOWS)}"
            return {"reply": "failed", "kind": "refused", "words": words}
        state[session][0][ask["id"]] = params
    elif op == "sample":
        requests, noise = state[session]
        logits = load_file(state["folder"] / ask["logits"])["logits"]
        rows = zip(logits, ask["ids"], strict=True)
        ids = [sample(row, noise, **requests[request]) for row, request in rows]
        save_file(
            {"sampled_token_ids": np.array(ids, np.int32).reshape(-1, 1)},
            state["folder"] / ask["output"],
        )
    return {"reply": "done"}


if __name__ == "__main__":
    known: dict[object, object] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps({**answer(asked, known), "call": asked["call"]}) + "\n")
        sys.stdout.flush()
