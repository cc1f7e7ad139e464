"""The laboratory itself: what it calls caught, survived and unusable, on a project of three lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTATIONS
from tests.mutants.mutation import Mutation, applied
from tests.mutants.runner import sound, verdicts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "adding.py").write_text("def add(a, b):\n    return a + b\n")
    test = (
        "from adding import add\n\n\ndef test_add():\n    assert add(2, 0) == 2\n\n\ndef test_broken():\n    assert 0\n"
    )
    (tree / "test_adding.py").write_text(test)
    return tree


def mutation(after: str, test: str = "test_adding.py::test_add", before: str = "a + b") -> Mutation:
    return Mutation(name=after, file="adding.py", before=before, after=after, tests=(test,))


def test_what_a_test_sees_is_caught_and_what_none_sees_survives(project: Path) -> None:
    tried = [mutation("a * b"), mutation("a - b"), mutation("a +")]

    found = {verdict.mutation: verdict.outcome for verdict in verdicts(project, tried, timeout_s=60)}

    assert found == {"a * b": "caught", "a - b": "SURVIVED", "a +": "ERROR"}
    assert (project / "adding.py").read_text() == "def add(a, b):\n    return a + b\n"


def test_a_test_that_fails_without_any_mutation_proves_nothing(project: Path) -> None:
    assert sound(project, [mutation("a * b")], timeout_s=60) == []
    assert sound(project, [mutation("a * b", "test_adding.py::test_broken")], timeout_s=60) != []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (mutation("a * b", before="b"), "2 times"),
        (mutation("a + b"), "changes nothing"),
        (mutation("a * b", "test_adding.py::test_gone"), "does not exist"),
        (mutation("a * b", "test_gone.py"), "does not exist"),
    ],
)
def test_what_cannot_be_applied_is_refused(project: Path, wrong: Mutation, why: str) -> None:
    assert why in (wrong.problem(project) or "")
    with pytest.raises(ValueError, match=why), applied(wrong, project):
        pass


def test_a_whole_file_of_tests_may_be_named(project: Path) -> None:
    assert mutation("a * b", "test_adding.py").problem(project) is None


def test_every_mutation_still_applies_and_has_a_name_of_its_own() -> None:
    assert {m.name: problem for m in MUTATIONS if (problem := m.problem(ROOT))} == {}
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS)
