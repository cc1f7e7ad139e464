"""The gate's answer as JUnit XML: a suite per cell, a case per request, guard and threshold."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.render import headline, reasons
from vcbench.lossless.result import TIES, CellResult, RequestVerdict, Verdict
from vcbench.records.printable import printable


def junit_xml(result: CheckResult) -> str:
    """The document; a pass has no failure and no error in it, anything else at least one."""
    root = ET.Element("testsuites", name=_safe(f"vcbench check {result.run}"))
    for cell in result.cells:
        suite = _Suite(root, cell.name)
        for verdict in cell.verdicts:
            _request(suite, result, verdict)
        _guards(suite, cell)
        suite.close()
    gate = _Suite(root, "gate")
    wrong = None
    if result.outcome != "PASS":
        wrong = ("failure", result.outcome, "\n".join([headline(result), *reasons(result)]))
    gate.case(f"outcome at level {result.level}", wrong)
    for number, text in enumerate([*result.differences, *result.problems], start=1):
        gate.case(f"problem {number}", ("error", "records", text))
    for finding in result.findings:
        name = f"{finding.rule} {finding.cell}".strip()
        gate.case(name, None if finding.outcome == "pass" else ("failure", finding.outcome, finding.detail))
    gate.close()
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


class _Suite:
    """One `testsuite` whose counts are written when it is closed."""

    def __init__(self, root: ET.Element, name: str) -> None:
        self.element = ET.SubElement(root, "testsuite", name=_safe(name))
        self.name, self.counts = name, {"tests": 0, "failure": 0, "error": 0}

    def case(self, name: str, wrong: tuple[str, str, str] | None) -> None:
        """Adds a case; `wrong` is (failure or error, its kind, its text)."""
        case = ET.SubElement(self.element, "testcase", classname=_safe(self.name), name=_safe(name))
        self.counts["tests"] += 1
        if wrong is not None:
            tag, kind, text = wrong
            self.counts[tag] += 1
            found = ET.SubElement(case, tag, type=_safe(kind), message=_safe(text.split("\n")[0]))
            found.text = _safe(text)

    def close(self) -> None:
        """Writes the counts."""
        self.element.set("tests", str(self.counts["tests"]))
        self.element.set("failures", str(self.counts["failure"]))
        self.element.set("errors", str(self.counts["error"]))


def _request(suite: _Suite, result: CheckResult, verdict: RequestVerdict) -> None:
    passes = verdict.verdict is Verdict.IDENTICAL or (verdict.verdict in TIES and result.level != "bitwise")
    tag = "error" if verdict.verdict in (Verdict.MISSING, Verdict.NOT_COMPARABLE) else "failure"
    name = f"{verdict.task}/{verdict.request}" if verdict.task else verdict.request
    suite.case(name, None if passes else (tag, str(verdict.verdict), verdict.detail or str(verdict.verdict)))


def _guards(suite: _Suite, cell: CellResult) -> None:
    for guard in cell.guards:
        wrong = None if guard.passed else ("failure", "VACUOUS", f"{guard.name}: {guard.detail}")
        suite.case(f"guard {guard.name}", wrong)


def _safe(text: str) -> str:
    """Text that XML 1.0 can hold: control characters and lone surrogates are spelled out."""
    return "".join(
        char if char not in "\ufffe\uffff" else char.encode("unicode_escape").decode()
        for char in printable(text, newlines=True)
    )
