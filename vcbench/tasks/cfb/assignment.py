"""The pairing of two small groups with the highest sum of scores (the assignment problem)."""

from __future__ import annotations

from collections.abc import Sequence

INFINITE = float("inf")


def best_pairs(scores: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Pairs (row, column) with the highest sum, as many as the shorter side has; among equal ones the same each time.

    Shapes: scores [rows][columns]. Cost: O(rows * columns * the shorter of both).
    Source: shortest augmenting paths with potentials; Jonker and Volgenant, Computing 38, 1987.
    """
    if not scores or not scores[0]:
        return []
    if len(scores) > len(scores[0]):
        return sorted((row, column) for column, row in best_pairs(list(zip(*scores, strict=True))))
    row_of: list[int | None] = [None] * len(scores[0])
    row_price, column_price = [0.0] * len(scores), [0.0] * len(scores[0])
    for row in range(len(scores)):
        _augment(scores, row, row_of, row_price, column_price)
    return sorted((row, column) for column, row in enumerate(row_of) if row is not None)


def _augment(
    scores: Sequence[Sequence[float]],
    row: int,
    row_of: list[int | None],
    row_price: list[float],
    column_price: list[float],
) -> None:
    """Pairs one more row along the cheapest path of re-pairings; costs are the negated scores."""
    columns = range(len(row_of))
    distance, before = [INFINITE] * len(row_of), [-1] * len(row_of)
    done: list[int] = []
    current, at, reached = row, -1, 0.0
    while True:
        for column in columns:
            if column in done:
                continue
            through = reached - scores[current][column] - row_price[current] - column_price[column]
            if through < distance[column]:
                distance[column], before[column] = through, at
        at = min((column for column in columns if column not in done), key=lambda column: distance[column])
        reached = distance[at]
        done.append(at)
        following = row_of[at]
        if following is None:
            break
        current = following
    row_price[row] += reached
    for column in done[:-1]:
        paired = row_of[column]
        assert paired is not None
        row_price[paired] += reached - distance[column]
        column_price[column] -= reached - distance[column]
    while at >= 0:
        previous = before[at]
        row_of[at] = row_of[previous] if previous >= 0 else row
        at = previous
