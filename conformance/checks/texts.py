"""Texts: greedy decoding with drafts, step after step, gives the text of greedy decoding without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind, clause_ids
from refsampler.conformance.designed.build import batch, request, row
from refsampler.conformance.subject import OpenSubject, derived_seed
from refsampler.conformance.verifying import drafting
from refsampler.law import target_law
from refsampler.request import Request
from refsampler.semantics import Semantics

__all__ = ["CHECKS", "text_of"]

_CLAUSES = clause_ids("spec.greedy", "spec.history")
_CANDIDATES = (*_CLAUSES, *clause_ids("greedy.argmax", "penalty.frequency", "penalty.history"))
_FORM = clause_ids("output.form")[0]

_V: Final = 12
_STARTS: Final = (3, 8)
_STEPS: Final = 10
_MOST: Final = 4
"""Drafts of a step."""


def _cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return a model whose logits depend on the last id: row v is what follows v.

    Numbers and the penalty are dyadic, and no two ids ever tie.
    """
    features = capabilities.features
    if Feature.SPECULATIVE not in features:
        return ()
    rows = [
        row({(v + 1) % _V: 4.0, (v + 5) % _V: 2.75, (v + 8) % _V: 0.75}, base=-64.0)
        for v in range(_V)
    ]
    penalised = Feature.PENALTIES in features
    asked = request(temperature=0.0, frequency_penalty=1.5 if penalised else 0.0)
    return (batch(_V, [(one, asked) for one in rows], *_CLAUSES),)


def text_of(model: Tensor, asked: Request, ids: int, semantics: Semantics) -> tuple[int, ...]:
    """Return what plain greedy decoding puts out, by the exact law.

    Args:
        model: [V, V], row v is what follows id v.
        asked: a greedy request with a prompt.
        ids: how many.
        semantics: of the backend.

    """
    for _ in range(ids):
        last = (*asked.prompt, *asked.output)[-1]
        law = target_law(model[last : last + 1], [asked], semantics)
        asked = replace(asked, output=(*asked.output, int(law.admissible[0].nonzero()[0])))
    return asked.output


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Decode two texts side by side, with drafts of which every other time the last one is wrong."""
    model = case.build_logits()
    first = [replace(case.requests[0], prompt=(start,)) for start in _STARTS]
    most = _STEPS * (_MOST + 1)
    right = [text_of(model, one, most, subject.capabilities.semantics) for one in first]
    drawn, seed = 0, derived_seed(subject.run_seed, case.id)
    with drafting(subject, first, _V, seed) as texts:
        for step in range(_STEPS):
            outputs = [one.output for one in texts.requests]
            coming = [ids[len(out) :] for ids, out in zip(right, outputs, strict=True)]
            sizes = [(step + 2 * text) % (_MOST + 1) for text in range(len(right))]
            wrong = [size > 0 and (step + text) % 2 == 1 for text, size in enumerate(sizes)]
            drafts = [
                (*ids[: size - 1], (ids[size - 1] + 2) % _V) if off else ids[:size]
                for ids, size, off in zip(coming, sizes, wrong, strict=True)
            ]
            texts.propose(drafts)
            answer = texts.verify(_logits(model, texts.requests, subject.capabilities.device), None)
            if answer.form:
                found = Finding(_FORM, "ids, then -1", answer.form, call=step)
                return Asked((found,), drawn)
            for text, gained in enumerate(answer.ids):
                expected = coming[text][: sizes[text] + (not wrong[text])]
                if gained != expected:
                    words = f"{list(expected)} behind {list(outputs[text])}, as without drafts"
                    seen = f"{list(gained)} for drafts {list(drafts[text])}"
                    found = Finding(
                        _CLAUSES[0], words, seen, row=text, call=step, candidates=_CANDIDATES
                    )
                    return Asked((found,), drawn)
                drawn += len(gained)
            texts.accept(answer.ids)
    return Asked((), drawn)


def _logits(model: Tensor, requests: Sequence[Request], device: str) -> Tensor:
    """Return what the model gives for every position: what follows the id before it."""
    lasts = [
        token
        for one in requests
        for token in (*one.prompt, *one.output, *one.drafts)[-len(one.drafts) - 1 :]
    ]
    return model[torch.tensor(lasts)].to(device)


CHECKS: tuple[Check, ...] = (Check("greedy-texts", _CLAUSES, Kind.EXACT, _cases, ask=_ask),)
