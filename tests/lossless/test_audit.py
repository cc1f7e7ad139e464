"""Steps of a precision, rows of the reference, and what an audit makes of a fork."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.records.samples import OUTPUT
from vcbench.errors import UsageError
from vcbench.lossless.answers import Answer, Arm, prompt_sha256
from vcbench.lossless.audit import Audited, apply_audit
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.result import CellResult, Verdict
from vcbench.lossless.steps import Row, inspect_rows, rounded, step_size, top_of
from vcbench.lossless.verdicts import judge
from vcbench.records.reader import CellInfo

CELL = CellInfo(id="v", label="vericache", arm="vericache")


@pytest.mark.parametrize(
    ("dtype", "value", "step"),
    [
        ("bfloat16", 16.0, 0.125),
        ("bfloat16", 31.9, 0.125),
        ("bfloat16", -20.0, 0.125),
        ("bfloat16", 15.9, 0.0625),
        ("float16", 16.0, 2.0**-6),
        ("float32", 1.0, 2.0**-23),
    ],
)
def test_steps(dtype: str, value: float, step: float) -> None:
    assert step_size(dtype, value) == step


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(UsageError, match="dtype 'int8' has no known step"):
        step_size("int8", 1.0)


def test_rounding_agrees_with_numpy() -> None:
    for value in np.random.default_rng(0).normal(size=200) * 20:
        assert rounded(float(value), "float16") == float(np.float16(value))
        assert rounded(float(value), "float32") == float(np.float32(value))


def test_the_highest_with_the_lower_id_first() -> None:
    values = np.array([1, 3, 2, 3, 3, 0, 3, 3, 3], dtype=np.float32)
    assert top_of(values) == ((1, 3.0), (3, 3.0), (4, 3.0), (6, 3.0), (7, 3.0))
    assert top_of(values[:2]) == ((1, 3.0), (0, 1.0))


def test_rows_by_hand() -> None:
    logits = np.array([[16.0, 16.0625, 15.0], [20.0, 1.0, 2.0], [1.0, np.nan, 0.0]], dtype=np.float32)
    first, second, third = inspect_rows(logits, [0, 2, 0], "bfloat16")
    assert (first.leader, first.shortfall, first.steps) == (1, 0.0625, 0.5)
    assert first.tied == {0, 1}
    assert (second.leader, second.steps, second.tied) == (0, 18 / 0.125, frozenset({0}))
    assert (third.leader, third.steps) == (-1, np.inf)


def row(token: int, *, steps: float = 0.0, tied: tuple[int, ...] = ()) -> Row:
    return Row(token=token, leader=token, shortfall=steps / 8, steps=steps, top=((token, 16.0),), tied=frozenset(tied))


def audited(
    method_steps: list[float], *, reference_steps: float = 0.0, tied: tuple[int, ...] = (), bitwise: bool = False
) -> CheckResult:
    """A method that leaves OUTPUT at token 3, with these shortfalls from there on."""
    theirs = [*OUTPUT[:3], *range(90, 90 + len(method_steps))]
    arms = []
    for name, ids in (("A", OUTPUT[: len(theirs)]), ("B", theirs)):
        answer = Answer(
            request="r", prompt_ids=[1], prompt_sha256=prompt_sha256([1]), token_ids=ids, finish_reason="length"
        )
        arms.append(Arm(name=name, settings={}, answers={"r": answer}))
    reference, method = arms
    verdict = judge("", "r", reference, method, bitwise=bitwise)
    cell = CellResult(cell=CELL, task="", verdicts=(verdict,), guards=(), arms=(reference, method))
    result = CheckResult(run="x", exactness="bitwise" if bitwise else "fast", cells=(cell,))
    own = [row(token) for token in reference.answers["r"].token_ids]
    own[1] = replace(own[1], steps=reference_steps)
    rows = [row(token) for token in OUTPUT[:3]]
    rows += [row(token, steps=steps, tied=tied) for token, steps in zip(theirs[3:], method_steps, strict=True)]
    audit = Audited(reference={"r": own}, method={"r": rows})
    return apply_audit(result, [audit], model="m", dtype="bfloat16")


@pytest.mark.parametrize(
    ("arguments", "verdict", "outcome"),
    [
        ({"method_steps": [0.0, 0.0], "tied": (13, 90)}, Verdict.TIE_EXACT, "PASS"),
        ({"method_steps": [0.5, 0.0], "reference_steps": 1.0}, Verdict.TIE_NEAR, "PASS"),
        ({"method_steps": [1.0, 0.0], "reference_steps": 1.0}, Verdict.TIE_NEAR, "PASS"),
        ({"method_steps": [1.5, 0.0], "reference_steps": 1.0}, Verdict.VIOLATION, "FAIL"),
        ({"method_steps": [0.5, 9.0], "reference_steps": 1.0}, Verdict.VIOLATION, "FAIL"),
        ({"method_steps": [0.5, 0.0], "reference_steps": 4.0}, Verdict.TIE_NEAR, "PASS"),
        ({"method_steps": [0.5, 0.0], "reference_steps": 4.5}, Verdict.INCONCLUSIVE, "INCONCLUSIVE"),
        ({"method_steps": [0.0, 0.0], "tied": (13, 90), "bitwise": True}, Verdict.TIE_EXACT, "FAIL"),
        ({"method_steps": [0.5, 0.0], "reference_steps": 1.0, "bitwise": True}, Verdict.TIE_NEAR, "FAIL"),
    ],
)
def test_what_an_audit_decides(arguments: dict[str, Any], verdict: Verdict, outcome: str) -> None:
    result = audited(**arguments)
    assert result.verdicts[0].verdict is verdict
    assert result.outcome == outcome
    assert result.verdicts[0].shortfall_steps == max(arguments["method_steps"])


def test_tau_is_measured_on_the_reference_alone() -> None:
    result = audited([7.0], reference_steps=2.0)
    assert result.audit is not None
    assert (result.audit.tau_steps, result.audit.cap, result.audit.decides) == (2.0, 4.0, True)
    assert "token 3 (id 90) lies 7 steps of bfloat16 below the reference's leader" in result.verdicts[0].detail


def test_a_tau_above_its_cap_decides_nothing_even_of_equal_outputs() -> None:
    """Both arms' records are of another model: equal to one another, far from the audit's."""
    answer = Answer(
        request="r", prompt_ids=[1], prompt_sha256=prompt_sha256([1]), token_ids=OUTPUT, finish_reason="length"
    )
    arms = tuple(Arm(name=name, settings={}, answers={"r": answer}) for name in "AB")
    verdict = judge("", "r", arms[0], arms[1], bitwise=False)
    cell = CellResult(cell=CELL, task="", verdicts=(verdict,), guards=(), arms=(arms[0], arms[1]))
    rows = {"r": [row(token, steps=50.0) for token in OUTPUT]}
    result = CheckResult(run="x", exactness="fast", cells=(cell,))
    assert result.outcome == "PASS"
    result = apply_audit(result, [Audited(reference=rows, method=rows)], model="m", dtype="bfloat16")
    assert (result.outcome, result.exit_code) == ("INCONCLUSIVE", 2)
