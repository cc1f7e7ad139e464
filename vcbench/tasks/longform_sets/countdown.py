"""Countdown of LongProc: the search that the prompt prescribes, written out, and what an answer's search is worth.

The search is depth-first: pick two numbers in order, the larger one first, try + - * / in turn, and drop results that
are no whole number or reach the limit. So there is one right text for every problem, and an answer can be compared with
it line by line. Source: Ye et al., LongProc, arXiv 2501.05414.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

LIMIT = 2000
HEADING = "# Search Procedure"
FOUND = "Now we have found the target"
EQUATION = re.compile(r"(\d{1,9})\s*([-+*/])\s*(\d{1,9})\s*=\s*(\d{1,9})")


@dataclass(slots=True)
class Search:
    """The text of a search, line by line, and the equations that reached the target; none if it cannot be reached."""

    target: int
    lines: list[str] = field(default_factory=list)
    equations: list[str] = field(default_factory=list)

    def run(self, numbers: Sequence[int]) -> bool:
        """Searches and writes; the first line states the problem."""
        self.lines.append(f"Initial number set: {list(numbers)}, target: {self.target}. {_options(numbers)}")
        return self._pick(list(numbers), depth=1)

    def _pick(self, numbers: list[int], *, depth: int) -> bool:
        for i, j in combinations(range(len(numbers)), 2):
            left = [number for k, number in enumerate(numbers) if k not in (i, j)]
            if left:
                self._write(
                    depth,
                    f"Pick two numbers ({numbers[i]}, {numbers[j]}) (numbers left: {left}). Try possible operations.",
                )
            for equation, result in _operations(numbers[i], numbers[j]):
                if self._try(equation, result, left, depth=depth + bool(left)):
                    self.equations.insert(0, equation)
                    return True
        return False

    def _try(self, equation: str, result: Fraction | None, left: list[int], *, depth: int) -> bool:
        """One operation, and everything that follows from it."""
        if result is None:
            outcome = ". drop this branch."
        elif result.denominator != 1:
            outcome = f". {float(result):.1f} is a decimal, drop this branch."
        elif result >= LIMIT:
            outcome = f". {result} exceeds the maximum intermediate result, drop this branch."
        elif not left:
            hit = result == self.target
            outcome = f". Evaluate {result} {'==' if hit else '!='} {self.target}, "
            outcome += "target found!" if hit else "drop this branch."
        else:
            return self._descend(equation, [int(result), *left], depth=depth)
        self._write(depth, f"Try {equation}{outcome}")
        return outcome.endswith("target found!")

    def _descend(self, equation: str, numbers: list[int], *, depth: int) -> bool:
        rest = ", just two numbers left." if len(numbers) == 2 else f". {_options(numbers)}"
        state = f"Current number set: {numbers}, target: {self.target}{rest}"
        self._write(depth, f"Try {equation}. Add {numbers[0]} to the number set. {state}")
        return self._pick(numbers, depth=depth + 1)

    def _write(self, depth: int, text: str) -> None:
        self.lines.append(f"{' ' * depth}|- {text}")


def worked(numbers: Sequence[int], target: int) -> tuple[str, str]:
    """The right answer to a problem in full, and its solution alone: three equations, one a line.

    Raises ValueError if the target cannot be reached.
    """
    search = Search(target)
    if not search.run(numbers):
        raise ValueError(f"{target} cannot be reached from {list(numbers)}")
    solution = "\n".join(search.equations)
    names = ["Final step", *["The step before"] * (len(search.equations) - 2), "The first step"]
    trace = [f"{name}: {equation}" for name, equation in zip(names, reversed(search.equations), strict=False)]
    procedure, joined = "\n".join(search.lines), "\n".join(trace)
    return (
        f"{HEADING}\n{procedure}\n\n{FOUND}, let's trace back the solution:\n{joined}\n\n"
        f"Output the solution in the required format:\n<Solution>\n{solution}\n</Solution>\n",
        solution,
    )


def solves(solution: str, numbers: Sequence[int], target: int) -> bool:
    """Whether the equations, one a line, use every number once and end at the target."""
    left = list(numbers)
    lines = solution.strip().split("\n")
    if len(lines) != len(numbers) - 1:
        return False
    for line in lines:
        match = EQUATION.fullmatch(line.strip())
        if match is None:
            return False
        a, b, result = int(match[1]), int(match[3]), int(match[4])
        if result not in _results(a, match[2], b):
            return False
        for used in (a, b):
            if used not in left:
                return False
            left.remove(used)
        left.append(result)
    return left == [target]


def agreeing_share(answer: str, right: str) -> float:
    """The share of the right search's lines, after the first, that the answer has in order up to its first mistake.

    In a line that tries an operation only the operation and whether the branch is dropped must agree. An answer whose
    first line states another problem has none.
    """
    given, wanted = (_procedure(text) for text in (answer, right))
    if given is None or wanted is None or given[0].rstrip() != wanted[0].rstrip():
        return 0.0
    agreeing = 0
    for ours, theirs in zip(given[1:], wanted[1:], strict=False):
        if not _agree(ours.rstrip(), theirs.rstrip()):
            break
        agreeing += 1
    return agreeing / (len(wanted) - 1)


def _procedure(text: str) -> list[str] | None:
    _, heading, rest = text.rpartition(HEADING)
    return rest.split(FOUND)[0].strip().split("\n") if heading else None


def _agree(given: str, wanted: str) -> bool:
    if given == wanted:
        return True
    dropped = "drop this branch"
    same_operation = given.split("=")[0] == wanted.split("=")[0]
    return "|- Try" in wanted and same_operation and (dropped in given) == (dropped in wanted)


def _operations(a: int, b: int) -> Iterator[tuple[str, Fraction | None]]:
    """The operations in the order in which they are tried, each as text and result; None for a division by 0."""
    a, b = max(a, b), min(a, b)
    yield f"{a} + {b} = {a + b}", Fraction(a + b)
    yield f"{a} - {b} = {a - b}", Fraction(a - b)
    yield f"{a} * {b} = {a * b}", Fraction(a * b)
    if b == 0:
        yield f"{a} / {b} (invalid operation)", None
    else:
        shown = f"{a // b}" if a % b == 0 else f"{a / b:.1f}"
        yield f"{a} / {b} = {shown}", Fraction(a, b)


def _results(a: int, operation: str, b: int) -> list[int]:
    """What the operation gives, if it is a whole number."""
    if operation == "/":
        return [a // b] if b and a % b == 0 else []
    return [{"+": a + b, "-": a - b, "*": a * b}[operation]]


def _options(numbers: Sequence[int]) -> str:
    return f"Options for choosing two numbers: {list(combinations(numbers, 2))}."
