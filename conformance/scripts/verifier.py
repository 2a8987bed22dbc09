"""What every script about a verifier begins with: the adapter, and functions that let it verify drafts."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.scripts.adapter import REQUEST_IMPORTS, head
from refsampler.conformance.scripts.expressions import tensor, value
from refsampler.request import ThinkingMarkers

__all__ = ["verifier_parts"]

_TEXT: Final = '''
{imports}
from refsampler.metadata import generators_of

DEVICE = "{device}"
THINKING = {thinking}
LOGITS = {logits}
LAWS = {laws}


class WrongForm(Exception):
    """The ids are not int32, one row a request, -1 behind what is emitted."""


def emitted(output, requests):
    """Return the ids that each request emits."""
    cells, width = output.token_ids, max((len(one.drafts) for one in requests), default=0) + 1
    if not hasattr(cells, "dtype") or cells.dtype is not torch.int32:
        raise WrongForm(f"token_ids of {{getattr(cells, 'dtype', type(cells).__name__)}}, int32 expected")
    if list(cells.shape) != [len(requests), width]:
        raise WrongForm(f"token_ids of shape {{list(cells.shape)}}, {{[len(requests), width]}} expected")
    rows = []
    for row, (one, ids) in enumerate(zip(requests, cells.tolist())):
        length = ids.index(-1) if -1 in ids else width
        if any(token != -1 for token in ids[length:]) or not 1 <= length <= len(one.drafts) + 1:
            raise WrongForm(f"request {{row + 1}} of {{len(one.drafts)}} drafts gets {{ids}}")
        rows.append(ids[:length])
    return rows

'''

_SAMPLER: Final = '''
def begin(requests, seed, **options):
    """Return what drafts for the requests and what verifies, in one stream of noise."""
    torch.manual_seed(seed)
    generators = generators_of(requests, torch.device(DEVICE))
    options = {"generators": generators, "speculative": True, "thinking": THINKING, **options}

    def batch(requests):
        return SamplingMetadata.from_requests(requests, LOGITS.shape[1], device=DEVICE, **options)

    def verify(requests, logits, laws):
        ids = [token for one in requests for token in one.drafts]
        ids = torch.tensor(ids, dtype=torch.int32, device=DEVICE)
        return emitted(adapter.verify(ids, laws, logits, batch(requests)), requests)

    return lambda logits: adapter.draft(logits, batch(requests)), verify
'''

_ENGINE: Final = '''
def begin(requests, seed):
    """Return what drafts for the requests and what verifies, in one stream of noise."""
    session = adapter.open(LOGITS.shape[1], seed)
    for row, one in enumerate(requests):
        session.add(row, replace(one, drafts=()))
    rows = range(len(requests))

    def verify(requests, logits, laws):
        drafts = [one.drafts for one in requests]
        return emitted(session.verify(rows, drafts, laws, logits), requests)

    return lambda logits: session.draft(rows, [()] * len(requests), logits), verify
'''


def verifier_parts(
    spec: str,
    capabilities: Capabilities,
    logits: Tensor,
    laws: Tensor | None,
    *,
    title: str,
    words: str = "",
    replay: str,
    thinking: ThinkingMarkers | None = None,
) -> str:
    """Return the beginning of a script: the adapter, LOGITS, LAWS, `begin(requests, seed)`.

    `begin` returns `draft(logits)` and `verify(requests, logits, laws)`; the latter gives the ids that
    each request emits, and raises `WrongForm` if they cannot be read.

    Args:
        spec: of the backend.
        capabilities: of the backend.
        logits: a row a position.
        laws: a row a draft, None if drafts are certain.
        title: first line.
        words: behind it.
        replay: command that judges what the script cannot.
        thinking: markers of a sampler's batch.

    """
    filled = _TEXT.format(
        imports="\n".join(REQUEST_IMPORTS),
        device=capabilities.device,
        thinking=value(thinking),
        logits=tensor(logits, capabilities.device),
        laws=tensor(laws, capabilities.device),
    )
    begin = _ENGINE if capabilities.level == 3 else _SAMPLER
    return head(spec, title=title, words=words, replay=replay) + filled + begin
