"""JUnit XML of a run: a test case a clause, as CI systems read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from refsampler.conformance.decisions import Decision
from refsampler.conformance.reporting.results import clause_result
from refsampler.conformance.results import ClauseResult, properties
from refsampler.conformance.verdict import Status

__all__ = ["junit", "write_junit"]

# What XML 1.0 cannot hold, not even escaped; a backend's error text may.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(backend: str, results: Sequence[ClauseResult], errors: Sequence[str] = ()) -> bytes:
    """Return the file's bytes.

    A MUST that FAILs or is INCONCLUSIVE is a failure, an ERROR an error. An expected failure and a
    SHOULD that fails do not gate and are skipped with their text, as is what was not tested.

    Args:
        backend: names the suite.
        results: of the run.
        errors: of the harness, in words.

    """
    elements = [_case(backend, one) for one in results]
    counts = {
        f"{kind}s" if kind != "skipped" else kind: sum(
            element.find(kind) is not None for element in elements
        )
        for kind in ("failure", "error", "skipped")
    }
    seconds = f"{sum(one.seconds for one in results):.3f}"
    attributes = {"tests": str(len(elements)), **{key: str(n) for key, n in counts.items()}}
    root = ET.Element("testsuites", attributes | {"time": seconds})
    name = _legal(f"refsampler/{backend}")
    suite = ET.SubElement(root, "testsuite", {"name": name} | attributes | {"time": seconds})
    suite.extend(elements)
    if errors:
        ET.SubElement(suite, "system-err").text = _legal("\n".join(errors))
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def write_junit(
    path: Path, backend: str, decisions: Sequence[Decision], errors: Sequence[str]
) -> None:
    """Write the decisions of a run to a file, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(junit(backend, [clause_result(one) for one in decisions], errors))


def _case(backend: str, one: ClauseResult) -> ET.Element:
    attributes = {
        "classname": _legal(f"refsampler.{backend}"),
        "name": one.clause,
        "time": f"{one.seconds:.3f}",
    }
    element = ET.Element("testcase", attributes)
    held = ET.SubElement(element, "properties")
    for name, value in properties(one):
        ET.SubElement(held, "property", {"name": name, "value": _legal(value)})
    kind = _kind(one)
    if kind:
        message = _legal(one.text.partition("\n")[0])
        outcome = ET.SubElement(element, kind, {"message": message})
        if kind != "skipped":
            outcome.set("type", one.status.name)
        outcome.text = _legal(one.text)
    return element


def _kind(one: ClauseResult) -> str:
    """Return the element that says how it ended; a pass has none."""
    if one.status is Status.PASS:
        return ""
    if one.status is Status.ERROR:
        return "error"
    undecided = one.status in (Status.FAIL, Status.INCONCLUSIVE)
    gates = one.must and undecided and not one.expected
    return "failure" if gates or one.needed else "skipped"


def _legal(text: str) -> str:
    """Replace characters that no XML file can hold."""
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)
