"""The countdown search: as the benchmark writes it, and what a damaged one is worth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.real_data import real
from vcbench.tasks.longform_sets.countdown import agreeing_share, solves, worked
from vcbench.tasks.rows import read_rows

NUMBERS, TARGET = [8, 3, 13, 25], 50
RIGHT, SOLUTION = worked(NUMBERS, TARGET)


def test_a_search_by_hand() -> None:
    text, solution = worked([2, 6], 3)
    assert solution == "6 / 2 = 3"
    assert text == (
        "# Search Procedure\n"
        "Initial number set: [2, 6], target: 3. Options for choosing two numbers: [(2, 6)].\n"
        " |- Try 6 + 2 = 8. Evaluate 8 != 3, drop this branch.\n"
        " |- Try 6 - 2 = 4. Evaluate 4 != 3, drop this branch.\n"
        " |- Try 6 * 2 = 12. Evaluate 12 != 3, drop this branch.\n"
        " |- Try 6 / 2 = 3. Evaluate 3 == 3, target found!\n"
        "\n"
        "Now we have found the target, let's trace back the solution:\n"
        "Final step: 6 / 2 = 3\n"
        "\n"
        "Output the solution in the required format:\n"
        "<Solution>\n6 / 2 = 3\n</Solution>\n"
    )


def test_the_benchmarks_own_texts() -> None:
    rows = [row.values for row in read_rows(real("longform/longproc_countdown_0.5k_3.json"))]
    assert len(rows) == 3
    for values in rows:
        text, solution = worked(values["nums"], values["target"])
        theirs = values["demonstration"].replace("<Search Procedure>", "# Search Procedure")
        assert text == theirs.replace("</Search Procedure>\n", "")
        assert solution == values["solution_text"]


@given(st.lists(st.integers(0, 40), min_size=2, max_size=4), st.booleans())
def test_what_a_search_finds_solves_the_problem(numbers: list[int], plus: bool) -> None:
    target = sum(numbers) if plus else abs(sum(numbers[:-1]) - numbers[-1])
    text, solution = worked(numbers, target)
    assert solves(solution, numbers, target)
    assert not solves(solution, numbers, target + 1)
    assert agreeing_share(text, text) == 1.0


def test_a_target_out_of_reach() -> None:
    with pytest.raises(ValueError, match=r"99 cannot be reached from \[1, 2\]"):
        worked([1, 2], 99)


@pytest.mark.parametrize(
    ("solution", "right"),
    [
        (SOLUTION, True),
        (SOLUTION.replace(" ", ""), True),
        ("3 + 8 = 11\n13 - 11 = 2\n25 * 2 = 50", True),
        ("8 + 3 = 11\n13 - 11 = 2", False),
        ("8 + 3 = 11\n13 - 11 = 2\n25 + 25 = 50", False),
        ("8 + 3 = 12\n13 - 11 = 2\n25 * 2 = 50", False),
        ("8 + 3 = 11\n13 - 11 = 2\n25 * 2 = 50\n", True),
        ("8 + 3 = 11\n\n13 - 11 = 2\n25 * 2 = 50", False),
        ("8 + 3 = 11 yes\n13 - 11 = 2\n25 * 2 = 50", False),
        ("__import__('os') + 3 = 11\n13 - 11 = 2\n25 * 2 = 50", False),
        ("", False),
    ],
)
def test_solutions(solution: str, right: bool) -> None:
    assert solves(solution, NUMBERS, TARGET) is right


def test_division_only_without_remainder() -> None:
    assert solves("6 / 2 = 3", [6, 2], 3)
    assert not solves("7 / 2 = 3", [7, 2], 3)
    assert not solves("7 / 0 = 0", [7, 0], 0)


def test_the_share_ends_at_the_first_mistake() -> None:
    lines = RIGHT.split("\n\n")[0].split("\n")
    steps = len(lines) - 2
    for kept in (1, 5, steps):
        assert agreeing_share("\n".join(lines[: 2 + kept]), RIGHT) == pytest.approx(kept / steps)
    index = next(i for i, line in enumerate(lines) if "drop this branch" in line)
    damaged = [*lines]
    damaged[index] = damaged[index].replace("drop this branch", "go on")
    assert agreeing_share("\n".join(damaged), RIGHT) == pytest.approx((index - 2) / steps)
    damaged[index] = lines[index].replace("drop this branch.", "so drop this branch")
    assert agreeing_share("\n".join(damaged), RIGHT) == 1.0, "only what is tried and dropped must agree"
    picked = next(i for i, line in enumerate(lines) if "Pick" in line and i > 2)
    damaged[picked] += "!"
    assert agreeing_share("\n".join(damaged), RIGHT) == pytest.approx((picked - 2) / steps)


def test_no_search_or_that_of_another_problem() -> None:
    assert agreeing_share("I think it is 50.", RIGHT) == 0.0
    assert agreeing_share(worked(NUMBERS, 2)[0], RIGHT) == 0.0
    assert agreeing_share(f"Let me think. # Search Procedure\nfirst try\n{RIGHT}", RIGHT) == 1.0, "the last one counts"
