"""Scripts that show dependence again: pairs of draws of equal flat rows, and bets on what they share."""

from __future__ import annotations

from typing import Final

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.checks.independence import Pairing, PlannedPairs
from refsampler.conformance.evidence.independence import RATES
from refsampler.conformance.scripts.adapter import adapter_parts
from refsampler.conformance.subject import derived_seed

__all__ = ["pairs_script"]

_MOST_LOGITS: Final = 2**27
_MULTIPLIED: Final = {
    Pairing.ROWS: "rows",
    Pairing.CALLS: "calls",
    Pairing.THREADS: "calls",
    Pairing.PROCESSES: "calls",
}
"""What each clause itself makes independent; a stream of torch's multiplies all pairs."""

_SOURCES: Final = {
    Pairing.ROWS: """    draw = begin(x, SEED)
    return [draw(x.clone()).flatten().cpu().long() for _ in range(CALLS)]
""",
    Pairing.UNIFORMS: """    draw, found = begin(x, SEED), []
    for _ in range(CALLS):
        found.append(draw(x.clone()).flatten().cpu().long())
        # of a flat row, a uniform u gives the id floor(u V)
        found.append((torch.rand(len(x), device=x.device).double() * IDS).long().cpu())
    return found
""",
    Pairing.RACE: """    draw, found = begin(x, SEED), []
    for _ in range(CALLS):
        found.append(draw(x.clone()).flatten().cpu().long())
        found.append(torch.empty_like(x).exponential_().argmin(dim=-1).cpu())
    return found
""",
    Pairing.THREADS: """    start, streams = threading.Barrier(2, timeout=60), [None, None]

    def work(thread):
        draw = begin(x, SEED + thread)
        start.wait()
        streams[thread] = [draw(x.clone()).flatten().cpu().long() for _ in range(CALLS)]

    threads = [threading.Thread(target=work, args=(thread,)) for thread in (0, 1)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return [call for pair in zip(*streams) for call in pair]
""",
    Pairing.PROCESSES: """    if sys.argv[1:]:
        seed = SEED + int(sys.argv[1])
        torch.manual_seed(seed)
        draw = begin(x, seed)
        print(json.dumps([draw(x.clone()).flatten().tolist() for _ in range(CALLS)]))
        sys.exit(0)
    commands = [[sys.executable, __file__, str(number * 2**20)] for number in (0, 1)]
    runs = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True) for one in commands]
    lines = [run.communicate()[0].splitlines()[-1] for run in runs]
    streams = [[torch.tensor(call) for call in json.loads(one)] for one in lines]
    return [call for pair in zip(*streams) for call in pair]
""",
}

_TEXT: Final = """
IDS, CALLS, SEED, DELTA = {ids}, {calls}, {seed}, {delta!r}
# pairs: (calls apart, rows apart); each draw is in at most one pair of a distance
LAGS = {lags}
RATES = torch.tensor({rates}, dtype=torch.float64)


def drawn(x):
    \"\"\"Return the calls in order; of two streams by turns.\"\"\"
{source}

def pairs(calls, apart, rows):
    \"\"\"Yield the two sides of the pairs at a distance, call by call.\"\"\"
    for at, call in enumerate(calls):
        if apart == 0:
            first = torch.arange(max(len(call) - rows, 0))
            first = first[(first // rows) % 2 == 0]
            yield call[first], call[first + rows]
        elif (at // apart) % 2 == 1:
            start, stop = max(-rows, 0), min(len(call), len(call) - rows)
            yield calls[at - apart][start:stop], call[start + rows : stop + rows]


def log_e(hits, ids):
    \"\"\"Bet that a relation of probability 1/ids holds more often: log e, averaged over rates.\"\"\"
    worst = torch.log1p(RATES * (2 * DELTA + ids * DELTA**2))
    each = []
    for one in hits:
        count, missed = one.sum(), (~one).sum()
        if "{multiplied}" == "calls":
            each.append(torch.log1p(RATES * (ids * one.double().mean() - 1)) - worst)
        else:
            gain = count * torch.log1p(RATES * (ids - 1)) + missed * torch.log1p(-RATES)
            each.append(gain - len(one) * worst)
    each = torch.stack(each)
    together = each.logsumexp(0) - math.log(len(each)) if "{multiplied}" == "rows" else each.sum(0)
    return float(together.logsumexp(0) - math.log(len(RATES)))


def learnt(x, y, ids, sign):
    \"\"\"Return where y - x, or y + x, is what it mostly was in the first quarter of the pairs.\"\"\"
    moved = ((y + sign * x) % IDS) * ids // IDS
    known = len(moved) // 4
    if not known:
        return moved[:0] == 0
    return moved[known:] == moved[:known].bincount(minlength=ids).argmax()


torch.manual_seed(SEED)
x = logits()
print(f"drawing {{CALLS}} calls of {{len(x)}} equal rows of {{IDS}} equally likely ids: {pairing}")
calls = drawn(x)
found = []
for apart, rows in LAGS:
    sides = [(x, y) for x, y in pairs(calls, apart, rows) if len(x)]
    where = f"{{apart}} calls and {{rows}} rows apart"
    bets = [
        (f"equal ids, {{where}}", [x == y for x, y in sides], IDS),
        (f"mirrored ids, {{where}}", [x + y == IDS - 1 for x, y in sides], IDS),
    ]
    if apart == 0:
        for ids in (IDS, 16):
            for sign, word in ((-1, "difference"), (1, "sum")):
                hits = [learnt(x, y, ids, sign) for x, y in sides]
                bets.append((f"one {{word}} of {{ids}}, {{where}}", hits, ids))
    for words, hits, ids in bets:
        if hits:
            count, all_ = sum(int(one.sum()) for one in hits), sum(len(one) for one in hits)
            found.append((log_e(hits, ids), f"{{words}}: {{count}} of {{all_}} pairs, {{all_ / ids:.1f}} expected"))
total = torch.tensor([one for one, _ in found], dtype=torch.float64).logsumexp(0) - math.log(len(found))
for one, words in sorted(found, reverse=True)[:5]:
    print(f"{{words}} (e-value 10^{{one / math.log(10):.1f}})")
print(f"e-value of all bets 10^{{float(total) / math.log(10):.1f}}; independent draws reach 10^6 once in 10^6 runs")
sys.exit(1 if total >= math.log(1e6) else 0)
"""


def pairs_script(
    one: PlannedPairs, spec: str, capabilities: Capabilities, run_seed: int
) -> str | None:
    """Return the text of the script; None if it cannot be written.

    That is so of processes whose every row has a seed of its own, and of calls of 2^27 logits and
    more.

    Args:
        one: the pairing.
        spec: of the backend.
        capabilities: of the backend.
        run_seed: of the run; the script's seed is another.

    """
    source = Pairing.ROWS if one.pairing is Pairing.CALLS else one.pairing
    if source not in _SOURCES or one.rows * one.case.logits.vocab > _MOST_LOGITS:
        return None
    beginning = adapter_parts(
        one.case,
        spec,
        capabilities,
        title=f"{one.clause} is broken by {spec}: {one.pairing}, drawn until it shows.",
        words=f"\n\n{one.draws} ids are drawn; what would show: {one.seen.bias}.",
        replay=f"refsampler replay {one.case.id}",
        copies=one.rows,
    )
    text = _TEXT.format(
        ids=one.law.size,
        calls=one.calls,
        seed=derived_seed(run_seed, one.case.id, "script"),
        delta=one.delta,
        lags=[(lag.calls, lag.rows) for lag in one.lags],
        rates=list(RATES),
        source=_SOURCES[source],
        multiplied=_MULTIPLIED.get(one.pairing, "all"),
        pairing=one.pairing,
    )
    return beginning + text
