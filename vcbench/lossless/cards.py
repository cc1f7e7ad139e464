"""Divergence cards: all that is known about one fork, as text and as plain data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vcbench.lossless.answers import Answer, Arm
from vcbench.lossless.result import CellResult
from vcbench.metrics.text import first_divergence
from vcbench.records.printable import printable

Place = Literal["prefill", "accepted", "rejected", "bonus", "one by one", "unknown"]
AROUND = 60
"""Characters of text shown before and after the fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopToken:
    """A token that an arm ranks high. `text` is escaped, or None where there is no tokenizer."""

    id: int
    text: str | None
    logit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One arm at the fork. `token`: what it chose, None where its output has ended. `top`: its five highest logits.

    gap: logit of its leader less that of the other arm's token; `gap_steps` the same in steps of the dtype at the
    leader's exponent. None where nobody looked at the logits.
    """

    name: str
    token: int | None
    text: str | None
    before: str
    after: str
    top: tuple[TopToken, ...] = ()
    gap: float | None = None
    gap_steps: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One rung of the ladder: whether it reproduces the fork, None where it was not run or does not apply."""

    name: str
    cause: str
    reproduces: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where in the rounds an output token comes from; `round` and `offset` count from 1, `place` says what it was.

    An accepted token was drafted; a rejected draft was replaced by the verifier's token; a bonus follows a draft that
    was accepted to its end. Widths are the rows that a forward pass had for this request.
    """

    step: int
    place: Place
    round: int | None = None
    offset: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    committed: int | None = None
    draft_width: int | None = None
    verify_width: int | None = None
    reference_width: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A fork. `cause` names what the first control that reproduces it stands for."""

    cell: str
    task: str
    request: str
    verdict: str
    detail: str
    position: Position
    reference: Side
    method: Side
    replay: str
    dtype: str | None = None
    controls: tuple[Control, ...] = ()
    cause: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def position_of(answer: Answer, step: int) -> Position:
    """The place of output token `step` (from 0) in the answer's rounds."""
    if not answer.committed:
        # Of an answer that no engine of ours decoded, nobody knows how it was; ours hash their logits.
        return Position(step=step, place="one by one" if answer.logits_sha256 else "unknown")
    if step == 0:
        return Position(step=step, place="prefill")
    first = 1
    rounds = zip(answer.drafted, answer.accepted, answer.committed, strict=True)
    for number, (drafted, accepted, committed) in enumerate(rounds, start=1):
        if step < first + committed:
            offset = step - first
            place: Place = "accepted" if offset < accepted else "bonus" if accepted == drafted else "rejected"
            return Position(
                step=step, place=place, round=number, offset=offset + 1, drafted=drafted, accepted=accepted,
                committed=committed, draft_width=1, verify_width=drafted + 1,
            )  # fmt: skip
        first += committed
    return Position(step=step, place="unknown")


def side(name: str, own: Answer, other: Answer, step: int) -> Side:
    """One arm at the fork, as far as its record goes."""
    at = first_divergence(own.text, other.text)
    at = len(own.text) if at is None else at
    return Side(
        name=name,
        token=own.token_ids[step] if step < len(own.token_ids) else None,
        text=None,
        before=printable(own.text[max(0, at - AROUND) : at]),
        after=printable(own.text[at : at + AROUND]),
    )


def card_lines(card: Card) -> list[str]:
    """The card as text; nothing in it can move a cursor."""
    place = card.position
    lines = [f"divergence in {card.cell}, {f'{card.task}/' if card.task else ''}{card.request}: {card.verdict}"]
    lines.append(f"  {card.detail}")
    lines.append(f"  step {place.step}: {_place(place)}")
    for one in (card.reference, card.method):
        token = "its output has ended" if one.token is None else f"token {one.token}{_quoted(one.text)}"
        lines.append(f"  {one.name}: {token}")
        if one.before or one.after:
            lines.append(f"    text: ...{one.before} >>> {one.after}")
        if one.top:
            lines.append(f"    top {len(one.top)}: {'  '.join(_top(top) for top in one.top)}")
        if one.note:
            lines.append(f"    {one.note}")
        if one.gap is not None:
            steps = "" if one.gap_steps is None else f" = {one.gap_steps:.3g} steps of {card.dtype}"
            lines.append(f"    the other arm's token lies {one.gap:.4g} below its leader{steps}")
    lines += [f"  control {_control(control)}" for control in card.controls]
    if card.controls:
        lines.append(f"  cause: {card.cause or 'no control reproduces it'}")
    lines.append(f"  replay: {card.replay}")
    return [printable(line) for line in lines]


def _place(place: Position) -> str:
    if place.round is None:
        return {"prefill": "from the prefill", "one by one": "decoded one by one"}.get(place.place, "rounds unknown")
    what = {
        "accepted": "an accepted draft",
        "rejected": "in place of a rejected draft",
        "bonus": "the bonus token",
    }.get(place.place, place.place)
    return (
        f"{what}, offset {place.offset} of round {place.round} ({place.drafted} drafted, {place.accepted} accepted, "
        f"{place.committed} committed); verified at width {place.verify_width}, drafted at width {place.draft_width}, "
        f"reference at width {place.reference_width}"
    )


def _control(control: Control) -> str:
    said = {True: "REPRODUCES the fork", False: "does not reproduce it", None: "not run"}[control.reproduces]
    return f"{control.name}: {said}{f' ({control.detail})' if control.detail else ''}"


def _top(token: TopToken) -> str:
    return f"{token.id}{_quoted(token.text)} {token.logit:.4f}"


def _quoted(text: str | None) -> str:
    return "" if text is None else f" '{text}'"


def cards_of(
    result: CellResult, reference: Arm, method: Arm, command: Sequence[str], options: Sequence[str]
) -> list[Card]:
    """Cards of all forks of a cell, from the records alone; `command`, `--request ID` and `options` replay one."""
    found = []
    for verdict in result.verdicts:
        full, line = reference.answers.get(verdict.request), method.answers.get(verdict.request)
        if verdict.step is None or full is None or line is None:
            continue
        found.append(
            Card(
                cell=result.cell.label,
                task=verdict.task,
                request=verdict.request,
                verdict=str(verdict.verdict),
                detail=verdict.detail,
                position=position_of(line, verdict.step),
                reference=side(reference.name, full, line, verdict.step),
                method=side(method.name, line, full, verdict.step),
                replay=shlex.join([*command, "--request", verdict.request, *options]),
            )
        )
    return found
