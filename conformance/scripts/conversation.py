"""Scripts that hold a conversation again: the same calls, judged by what must be, or must be equal.

What cannot be judged from the calls alone is compared with the answers that were judged wrong.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import Case
from refsampler.conformance.checks import Check, all_checks
from refsampler.conformance.checks.attribution import CERTAIN
from refsampler.conformance.checks.base import Asked
from refsampler.conformance.scripts.adapter import REQUEST_IMPORTS, rows_lines
from refsampler.conformance.scripts.expressions import id_set, tensor, value
from refsampler.conformance.subject import Draw, OpenSubject
from refsampler.conformance.transcript import Call, NotWritable, Transcript, watched
from refsampler.law import target_law
from refsampler.params import GREEDY_EPSILON
from refsampler.request import Request

__all__ = ["check_called", "conversation_body", "writing"]

_PREFIX: Final = "script of "
_IMPROBABLE: Final = CERTAIN + 12
"""Nats: of a vocabulary of 2^17 all ids so far down have a mass of e^-35 together."""
_READ_LATER: Final = ("seeds-unread",)
"""Checks about answers that stand unread, which a script, and what writes it, reads at once."""
_LONGEST: Final = 4_000_000
"""Characters of a script; who asks more is shown by `refsampler replay` alone."""

_BODY: Final = '''

def forged(good, **wrong):
    """Return a value object with fields that its constructor refuses."""
    made = object.__new__(type(good))
    for name in type(good).__dataclass_fields__:
        object.__setattr__(made, name, wrong.get(name, getattr(good, name)))
    return made


{setup}

# kind, session, ids, requests, tokens, vocabulary, place of the logits, more, mode, seed
CALLS = [
{calls}
]
BESIDE = [
{beside}
]
# for each call, for each row: the ids that a right adapter may give, None where the calls do not say
ALLOWED = {allowed}
# rows (call, row) of one seed, step, logits and parameters: they get one id
ALIKE = {alike}
# for each call, for each row: logprobs asked for, as a number and as ids
LOGPROBS = {logprobs}
# the answers that were judged wrong
WAS = json.loads(zlib.decompress(base64.b64decode("{was}")))
sessions = {{}}


def answer_of(output):
    """Return ids and logprobs of an output, or ids of a kernel, in plain numbers."""
    drawn = output[0] if isinstance(output, tuple) else output
    ids = getattr(drawn, "sampled_token_ids", drawn)
    found = {{"ids": ids.flatten().tolist()}}
    logprobs = getattr(drawn, "logprobs_tensors", None)
    if logprobs is not None:
        names = ("logprob_token_ids", "logprobs", "valid", "selected_token_ranks")
        found |= {{name: getattr(logprobs, name).tolist() for name in names}}
    return found


def perform(kind, session, ids, requests, tokens, vocab, place, more, mode, seed, known=sessions):
    """Make a call and return its answer; an error is an answer too."""
    if seed is not None and place is not None:
        torch.manual_seed(seed)
    x = None if place is None else LOGITS[place].clone()
    try:
        match kind:
            case "open":
                known[session] = adapter.open(vocab, seed)
            case "add":
                known[session].add(ids[0], requests[0])
            case "remove":
                known[session].remove(ids[0])
            case "accept":
                known[session].accept(ids, tokens)
            case "close":
                known[session].close()
            case "sample":
                return answer_of(known[session].sample(ids, x))
            case "batch":
                return answer_of(adapter.sample(x, more(x), **({{}} if mode is None else {{"logprobs_mode": mode}})))
            case "draw":
                return answer_of(adapter.draw(x, more()))
    except (Exception, SystemExit) as error:
        return {{"error": f"{{type(error).__name__}}: {{error}}"}}
    return {{}}


def wrong_logprobs(x, asked, found):
    """Yield what is wrong with raw logprobs, beside log-softmax in float64."""
    exact = x.double().log_softmax(-1)
    if not found.get("logprob_token_ids"):
        if any(number is not None or listed for number, listed in asked) and not found.get("logprobs"):
            yield "no logprobs for rows that ask"
        return
    for row, (number, listed) in enumerate(asked):
        if number is None and not listed:
            continue
        kept = [at for at, valid in enumerate(found["valid"][row]) if valid]
        ids = [found["logprob_token_ids"][row][at] for at in kept]
        values = [found["logprobs"][row][at] for at in kept]
        if ids[:1] != [found["ids"][row]]:
            yield f"row {{row}}: the sampled id {{found['ids'][row]}} is not first in {{ids[:8]}}"
            continue
        right = exact[row, ids].tolist()
        off = [at for at, (v, r) in enumerate(zip(values, right)) if not (v == r or abs(v - r) <= band(r))]
        if off:
            yield f"row {{row}}: {{values[off[0]]:.7g}} for id {{ids[off[0]]}}, {{right[off[0]]:.7g}} in float64"
            continue
        count = x.shape[1] if number == -1 else number or 0
        if listed and ids[1:] != list(listed):
            yield f"row {{row}}: ids {{ids[1:9]}} in place of {{list(listed)[:8]}}"
        if not listed and count:
            best, given = exact[row].topk(count).values, sorted({{*ids[1 : 1 + count]}})
            shown = exact[row, given].sort(descending=True).values
            if len(given) < count or ((shown - best).abs() > 3e-5).any():
                yield f"row {{row}}: ids {{ids[1:9]}} are not the {{count}} most probable"
        top = exact[row, ids[0]]
        least = int((exact[row] > top + band(float(top))).sum()) + int((exact[row] == top).sum())
        most, rank = int((exact[row] >= top - band(float(top))).sum()), found["selected_token_ranks"][row]
        if not least <= rank <= most:
            yield f"row {{row}}: rank {{rank}} of id {{ids[0]}} in place of {{most}}"


def band(exact):
    """Return how far a float32 log-softmax may be off."""
    return 2e-5 + 2**-22 * abs(exact)


def problems(answers):
    """Yield what no right adapter answers."""
    for at, (call, found) in enumerate(zip(CALLS, answers)):
        if RAISES and "error" in found:
            yield f"call {{at}}: {{found['error']}}"
        ids = found.get("ids", [])
        for row, (token, allowed) in enumerate(zip(ids, ALLOWED[at] or ())):
            if allowed is not None and token not in allowed:
                yield f"call {{at}}, row {{row}}: id {{token}}, allowed are {{sorted(allowed)[:8]}}"
        if ids and call[8] in (None, "raw_logprobs") and LOGPROBS[at]:
            for words in wrong_logprobs(LOGITS[call[6]], LOGPROBS[at], found):
                yield f"call {{at}}, {{words}}"
    for group in ALIKE:
        given = [answers[at]["ids"][row] for at, row in group if row < len(answers[at].get("ids", []))]
        if len({{*given}}) > 1:
            yield f"ids {{given[:8]}} in (call, row) {{group[:8]}} of one seed"


done = threading.Event()


def beside():
    """Make the calls of another thread, the last one again and again."""
    known = {{}}
    for one in BESIDE:
        perform(*one, known=known)
    while not done.is_set():
        perform(*BESIDE[-1][:-1], None, known=known)


def hold():
    """Make all calls; another thread joins in after the first one that samples."""
    answers, thread = [], None
    for one in CALLS:
        answers.append(perform(*one))
        if BESIDE and thread is None and one[6] is not None:
            thread = threading.Thread(target=beside)
            thread.start()
    done.set()
    if thread is not None:
        thread.join()
    return answers


answers = hold()
now, then = list(problems(answers)), list(problems(WAS))
again = [repr(one) == repr(two) for one, two in zip(answers, WAS)]
print(f"{{len(CALLS)}} calls, {{sum(again)}} of them answered as in the run that found the failure")
print("expected ", {expected!r})
print("seen     ", {seen!r}, "in the run that found it")
for words in now[:10]:
    print("now      ", words)
for at, (one, two) in enumerate(zip(answers, WAS)):
    if repr(one) != repr(two):
        print(f"call {{at}} now   {{repr(one)[:300]}}\\ncall {{at}} then  {{repr(two)[:300]}}")
        break
if then or now:
    sys.exit(1 if now else 0)
sys.exit(1 if all(again) else 2)
'''


def writing(check: Check) -> Check:
    """Return a check that asks the same and answers with the rest of a script."""

    def ask(subject: OpenSubject, case: Case) -> Asked:
        return Asked(script=_written(subject, check, case))

    return Check(f"{_PREFIX}{check.name}", check.clauses, check.kind, lambda _c, _s: (), ask=ask)


def check_called(name: str) -> Check:
    """Return the check of a name, one that writes its script too.

    Raises:
        StopIteration: there is none.

    """
    found = next(one for one in all_checks() if one.name == name.removeprefix(_PREFIX))
    return writing(found) if name.startswith(_PREFIX) else found


def conversation_body(script: str, expected: str, seen: str, *, raises: bool) -> str:
    """Return the end of a script: the answer of a check that writes, with the words of the finding."""
    return f"\nRAISES = {raises}\n" + script.replace("{expected!r}", repr(expected)).replace(
        "{seen!r}", repr(seen)
    )


class _Noting(OpenSubject):
    """Tells the transcript which batch is being asked."""

    def __init__(self, subject: OpenSubject, transcript: Transcript) -> None:
        super().__init__(watched(subject.backend, transcript), subject.run_seed)
        self._transcript = transcript

    def sample(self, case: Case, call: int, key: str) -> Draw:
        """Sample as ever."""
        noted = self._transcript.requests, self._transcript.thinking
        self._transcript.requests, self._transcript.thinking = case.requests, case.thinking
        try:
            return super().sample(case, call, key)
        finally:
            self._transcript.requests, self._transcript.thinking = noted


def _written(subject: OpenSubject, check: Check, case: Case) -> str:
    """Hold the conversation with everything written down; empty if that cannot be."""
    from refsampler.conformance.caserun import judge_case

    if check.name in _READ_LATER:
        return ""
    transcript = Transcript(case.requests, case.thinking)
    try:
        judge_case(_Noting(subject, transcript), check, case)
        text = _text(transcript, subject.capabilities)
    except NotWritable:
        return ""
    return text if len(text) <= _LONGEST else ""


def _text(transcript: Transcript, capabilities: Capabilities) -> str:
    logits: dict[bytes, tuple[int, str]] = {}
    setup: list[str] = []
    calls = [_call(one, capabilities, logits, setup) for one in transcript.calls]
    beside = [_call(one, capabilities, logits, setup) for one in transcript.beside]
    imports = [] if capabilities.level == 1 else [*REQUEST_IMPORTS, ""]
    tensors = [f"    {text}," for _, text in logits.values()]
    was = json.dumps([one.answer for one in transcript.calls]).encode()
    filled = _BODY.replace("{expected!r}", "{{expected!r}}").replace("{seen!r}", "{{seen!r}}")
    return filled.format(
        setup="\n".join([*imports, "LOGITS = [", *tensors, "]", *setup]),
        calls="\n".join(calls),
        beside="\n".join(beside),
        allowed=f"[{', '.join(_allowed(one, capabilities) for one in transcript.calls)}]",
        alike=_alike(transcript.calls),
        logprobs=[_logprobs(one) for one in transcript.calls],
        was=base64.b64encode(zlib.compress(was, 9)).decode(),
    )


def _call(
    one: Call, capabilities: Capabilities, logits: dict[bytes, tuple[int, str]], setup: list[str]
) -> str:
    """Return a line of the table; what it needs goes into the logits and the set-up."""
    place, more, requests = None, "None", "()"
    if one.logits is not None:
        plain = one.logits.detach().cpu().contiguous()
        key = plain.reshape(-1).view(torch.uint8).numpy().tobytes() + str(plain.shape).encode()
        text = tensor(plain, capabilities.device)
        place = logits.setdefault(key, (len(logits), text))[0]
    if one.rows is not None:
        more = f"rows_{len(setup)}"
        lines = [f"def {more}():", *rows_lines(one.rows, capabilities.device), "    return rows"]
        setup.append("\n\n" + "\n".join(lines))
    if one.kind == "batch":
        more = f"batch_{len(setup)}"
        changes = "".join(
            f", {name}={_field(now, capabilities.device)}" for name, now in one.changes.items()
        )
        setup.append(
            f"\n\ndef {more}(x):\n    requests = {_requests(one.requests)}\n"
            "    made = SamplingMetadata.from_requests(\n"
            f"        requests, x.shape[1], device=x.device, thinking={value(one.thinking)}\n    )\n"
            f"    return replace(made{changes})"
        )
    if one.kind == "add":
        requests = _requests(one.requests)
    parts = (one.kind, one.session, one.ids, requests, one.tokens, one.vocab, place, more)
    words = [repr(part) if at not in (3, 7) else str(part) for at, part in enumerate(parts)]
    return f"    ({', '.join(words)}, {one.mode!r}, {one.seed!r}),"


def _requests(requests: Sequence[Request]) -> str:
    return f"({''.join(f'{_request(one)}, ' for one in requests)})"


def _request(one: Request) -> str:
    """Return a request, whose constructor may refuse it."""
    try:
        replace(one, params=replace(one.params))
    except (ValueError, TypeError):
        params = f"forged(SamplingParams(), {_fields(one.params)})"
        return f"forged(Request(), params={params}, prompt={one.prompt!r}, output={one.output!r})"
    return value(one)


def _fields(params: Any) -> str:
    return ", ".join(
        f"{name}={getattr(params, name)!r}" for name in type(params).__dataclass_fields__
    )


def _field(now: Any, device: str) -> str:
    return tensor(now, device) if hasattr(now, "dtype") else repr(now)


def _allowed(one: Call, capabilities: Capabilities) -> str:
    """Return for each row the ids that may be given, as an expression."""
    if one.logits is None or len(one.requests) != len(one.logits) or not len(one.logits):
        return "None"
    if {*one.changes} - {"max_num_logprobs", "logprob_token_ids"}:
        return "None"
    logits = one.logits.cpu()
    law = target_law(logits, one.requests, capabilities.semantics, thinking=one.thinking)
    sets = []
    for row in range(len(logits)):
        likely = bool(law.greedy[row]) | (law.logprobs[row] > -_IMPROBABLE)
        allowed = np.flatnonzero((law.admissible[row] & likely).numpy()).tolist()
        free = not bool(law.valid[row]) or len(allowed) == logits.shape[1]
        sets.append("None" if free else id_set(allowed))
    return f"[{', '.join(sets)}]"


def _alike(calls: Sequence[Call]) -> list[list[tuple[int, int]]]:
    """Return the groups of rows that must get one id."""
    groups: dict[object, list[tuple[int, int]]] = {}
    for at, one in enumerate(calls):
        for row, key in _keys(one):
            groups.setdefault(key, []).append((at, row))
    return [group for group in groups.values() if len(group) > 1]


def _keys(one: Call) -> Iterator[tuple[int, object]]:
    if one.logits is None:
        return
    for row, x in enumerate(one.logits.cpu().float().numpy()):
        if one.rows is not None:
            if bool(one.rows.seeded[row]):
                names = ("seed", "step", "top_k", "top_p", "temperature", "min_p")
                parts = [getattr(one.rows, name) for name in names]
                yield (
                    row,
                    (x.tobytes(), *(None if part is None else float(part[row]) for part in parts)),
                )
        elif row < len(one.requests) and one.requests[row].params.seed is not None:
            asked = one.requests[row]
            if asked.params.temperature < GREEDY_EPSILON:
                continue
            plain = replace(asked.params, logprobs=None, logprob_token_ids=None)
            yield row, (x.tobytes(), one.steps[row], replace(asked, params=plain))


def _logprobs(one: Call) -> list[tuple[int | None, tuple[int, ...] | None]] | None:
    if one.logits is None or len(one.requests) != len(one.logits):
        return None
    params = [asked.params for asked in one.requests]
    changed = {*one.changes} & {"max_num_logprobs", "logprob_token_ids"}
    if changed or all(asked.logprobs is None and not asked.logprob_token_ids for asked in params):
        return None
    return [(asked.logprobs, asked.logprob_token_ids) for asked in params]
