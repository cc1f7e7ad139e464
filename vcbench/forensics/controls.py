"""The control ladder: a forked request decoded again under one changed condition after the other.

The first rung that reproduces the fork names its cause. A rung reproduces it where its output leaves the reference at
the fork or before it, or ends otherwise. The reference is the recorded one or, where decoding it again twice gives one
and the same other output, that output: then the recorded one itself was made under a condition that a later rung has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vcbench.compressors.none import NoCompression, NoneOptions
from vcbench.engine.decoding.forcing import force
from vcbench.engine.decoding.levels import CacheLevel
from vcbench.engine.decoding.progress import Progress
from vcbench.engine.decoding.session import CellSetup
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import Generation
from vcbench.forensics.replay import Decoded, Replay
from vcbench.lossless.audit import with_logits
from vcbench.lossless.cards import Card, Control, Side, TopToken
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.steps import top_of
from vcbench.metrics.text import first_divergence
from vcbench.records.printable import printable
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import RequestLine

FORKS_PER_CELL = 2
"""How many forks of each cell are looked into unless more are asked for."""
OTHER_BATCH = 4
FLOAT32 = "float32"


def run_controls(result: CheckResult, run: Run, *, limit: int | None = FORKS_PER_CELL) -> CheckResult:
    """The result whose cards say which control reproduces the fork, for the first forks of each cell (None: of all).

    A remark says how many were left out. Cost: some ten decodings of the request for each card, and loading the model.
    """
    if not result.cards:
        return result
    replay = Replay.of(run)
    cards, done = [], dict.fromkeys((card.cell for card in result.cards), 0)
    for card in result.cards:
        if limit is None or done[card.cell] < limit:
            done[card.cell] += 1
            cards.append(Ladder(replay, card).climb())
        else:
            cards.append(card)
    left = sum(not card.controls for card in cards)
    remark = f"{left} of {len(cards)} forks were not looked into; `--forks 0` decodes all of them again"
    return replace(result, cards=tuple(cards), remarks=(*result.remarks, *([remark] if left else [])))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rung found: whether the fork came again (None: not applicable), and a remark."""

    reproduces: bool | None
    detail: str = ""


class Ladder:
    """The rungs for one fork."""

    def __init__(self, replay: Replay, card: Card) -> None:
        self.replay, self.card = replay, card
        self.task, self.name, self.step = card.task, card.request, card.position.step
        run = replay.run
        self.cell = next(c for c in run.cells if c.label == card.cell and c.answers(self.task))
        baseline = run.baseline(self.task)
        assert baseline is not None
        self.reference = self._line(baseline)
        self.method = self._line(self.cell)
        self.batch = replay.batch_of(self.task, self.name)
        self.expected = _Output(self.reference.token_ids, self.reference.finish_reason)
        self.reach = self.step
        self.full = CellSetup(arm="full", seed=replay.bench.config.seed)
        self.setup = replay.setup(replay.planned(self.cell, self.task))

    def climb(self) -> Card:
        """The card with logits of both arms, every rung up to the first that reproduces the fork, and the cause."""
        sides = self._sides()
        controls: list[Control] = []
        cause = None
        for name, meaning, rung in self._rungs():
            if cause is not None:
                controls.append(Control(name=name, cause=meaning, reproduces=None, detail="the cause is found"))
                continue
            outcome = rung()
            controls.append(Control(name=name, cause=meaning, reproduces=outcome.reproduces, detail=outcome.detail))
            if outcome.reproduces:
                cause = meaning
        dtype = self.card.dtype or self.replay.bench.identity.dtype
        return replace(
            self.card, reference=sides[0], method=sides[1], controls=tuple(controls), cause=cause, dtype=dtype
        )

    def _rungs(self) -> Sequence[tuple[str, str, Callable[[], Outcome]]]:
        width = max(self.method.drafted, default=0) + 1
        return (
            ("reference repeated", "self-noise", self._repeated),
            ("reference at another batch size", "batch", self._other_batch),
            (f"scored at width {width} with no drafter", "width kernel", lambda: self._width(width)),
            ("cold against warm", "cache reuse", self._warm),
            ("the cell without drafts and compression", "other weights or settings", self._undrafted),
            ("draft and verify with compression off", "draft-verify logic", self._uncompressed),
            ("float32 in both arms", "compression leaking into verification", self._float32),
        )

    def _repeated(self) -> Outcome:
        """From fresh prefills. Two that agree with each other alone are the reference from here on."""
        first = self._against_reference(self._cold())
        if not first.reproduces:
            return first
        again, other = (_output(self._cold()) for _ in range(2))
        if again is None or again != other:
            return first
        self.expected, self.reach = again, len(again.token_ids)
        return Outcome(False, f"twice the same, but not what was recorded: {first.detail}")

    def _other_batch(self) -> Outcome:
        names = [self.name]
        if len(self.batch) == 1:
            others = [
                request for task, request in self.replay.run.prompts if task == self.task and request != self.name
            ]
            names += others[: OTHER_BATCH - 1]
        if len(names) == len(self.batch):
            return Outcome(None, "the run has no other request to put beside it")
        outcome = self._against_reference(self._decode(self.full, names))
        return replace(outcome, detail=f"{len(names)} in place of {len(self.batch)}")

    def _width(self, width: int) -> Outcome:
        """Blocks of `width` rows of the reference's own output; each row's choice must be the output's next token."""
        output = self.expected.token_ids
        snapshot = self.replay.snapshot(self.task, self.name)
        cache, wrong = snapshot.prefill.cache, None
        progress = Progress(snapshot.request)
        if not progress.selector.takes_best:
            return Outcome(None, "the tokens are not chosen by the logits alone")
        # The block that holds the last row of interest is a whole one: its width is what is tried.
        reached = min(self.reach, len(output) - 1)
        fed = output[: min(-(-reached // width) * width, len(output) - 1)]
        for forced in force(self.replay.decoder, {self.name: cache}, {self.name: fed}, rows=width):
            choices = self.replay.decoder.rows.arg_max(forced.logits)
            wrong = first_divergence(output[forced.first + 1 : forced.first + 1 + len(choices)], choices)
            if wrong is not None:
                wrong += forced.first + 1
                break
        cache.rewind(len(snapshot.request.prompt_ids))
        found = wrong is not None and wrong <= self.reach
        return Outcome(found, f"leaves the reference at token {wrong}" if found else "")

    def _warm(self) -> Outcome:
        """A fresh prefill against a snapshot that the method has used."""
        self._decode(self.setup, self.batch)
        warm = self._against_reference(self._decode(self.full, self.batch))
        cold = self._against_reference(self._cold())
        if warm.reproduces == cold.reproduces:
            return Outcome(False)
        return Outcome(True, f"the {'warm' if warm.reproduces else 'cold'} one leaves the reference")

    def _undrafted(self) -> Outcome:
        """One row at a time through all that the cell is made of: nothing is drafted, hence nothing accepted."""
        undrafted = replace(self.setup, compressor=NoCompression(NoneOptions()), draft_length=0)
        self._forget()
        return self._against_reference(self._decode(undrafted, self.batch))

    def _uncompressed(self) -> Outcome:
        """Once with every draft right, once with the drafts that were recorded: wrong where one was rejected."""
        plain = replace(self.setup, compressor=NoCompression(NoneOptions()))
        self._forget()
        outcome = self._against_reference(self._decode(plain, self.batch))
        if outcome.reproduces:
            return outcome
        engine = self.replay.engine
        recorded = {self.name: self.method}

        def repeat(decoder: Decoder, caches: Mapping[str, KVCache]) -> CacheLevel:
            return Recorded(decoder, caches, recorded)

        repeating = engine.with_parts(replace(engine.parts("vericache"), drafter=repeat))
        self._forget()
        decoded = self.replay.decode(plain, self.task, self.batch, self.name, self.step, repeating)
        found = self._against_reference(decoded)
        return replace(found, detail=f"{found.detail}, with the recorded drafts" if found.reproduces else "")

    def _float32(self) -> Outcome:
        if self.replay.bench.identity.dtype == FLOAT32:
            outcome = self._against_reference(self._decode(self.setup, self.batch))
            return replace(outcome, detail=f"{FLOAT32} already; the cell decoded again")
        wide = self.replay.in_float32()
        full = wide.decode(self.full, self.task, self.batch, self.name, self.step)
        ours = wide.decode(self.setup, self.task, self.batch, self.name, self.step)
        if full is None or ours is None:
            return Outcome(True, "no result")
        fork = first_divergence(full.generation.token_ids, ours.generation.token_ids)
        return Outcome(fork is not None, "" if fork is None else f"the two part at token {fork}")

    def _cold(self) -> Decoded | None:
        """The reference from fresh prefills."""
        self._forget()
        return self._decode(self.full, self.batch)

    def _forget(self) -> None:
        for name in self.batch:
            self.replay.forget(self.task, name)

    def _decode(self, setup: CellSetup, names: Sequence[str]) -> Decoded | None:
        return self.replay.decode(setup, self.task, names, self.name, self.step)

    def _against_reference(self, decoded: Decoded | None) -> Outcome:
        if decoded is None:
            return Outcome(True, "no result")
        ours = decoded.generation
        fork = first_divergence(self.expected.token_ids, ours.token_ids)
        if fork is not None and fork <= self.reach:
            return Outcome(True, f"leaves the reference at token {fork}")
        if fork is None and ours.finish_reason != self.expected.finish_reason:
            return Outcome(True, f"ends by {ours.finish_reason!r}")
        return Outcome(False)

    def _sides(self) -> tuple[Side, Side]:
        """Both sides with the logits of the fork, each where decoding again gives what was recorded."""
        full = self._decode(self.full, self.batch)
        ours = self._decode(self.setup, self.batch)
        return (
            self._side(self.card.reference, full, self.reference, self.card.method.token),
            self._side(self.card.method, ours, self.method, self.card.reference.token),
        )

    def _side(self, side: Side, decoded: Decoded | None, line: RequestLine, other: int | None) -> Side:
        named = replace(side, text=self._text(side.token))
        if decoded is None or decoded.logits is None or not _same(decoded.generation, line, self.step):
            return named
        values = decoded.logits.numpy()
        if not np.isfinite(values).all():
            return replace(named, note="its logits are not finite")
        top = top_of(values)
        gap = top[0][1] - float(values[other]) if other is not None else None
        found = with_logits(named, top, gap or 0.0, self.card.dtype or self.replay.bench.identity.dtype)
        tokens = tuple(TopToken(id=token.id, text=self._text(token.id), logit=token.logit) for token in found.top)
        return replace(found, top=tokens) if gap is not None else replace(found, top=tokens, gap=None, gap_steps=None)

    def _text(self, token: int | None) -> str | None:
        if token is None:
            return None
        return printable(self.replay.bench.tokenizer.decode([token]))

    def _line(self, cell: CellInfo) -> RequestLine:
        return self.replay.run.requests[cell.id, self.task, self.name]


class Recorded(CacheLevel):
    """Proposes what a request's rounds drafted, as far as records tell: what they accepted, then a wrong token."""

    def __init__(self, decoder: Decoder, caches: Mapping[str, KVCache], lines: Mapping[str, RequestLine]) -> None:
        """`lines`: the records to follow; other requests, and rounds beyond the record, err in their last token."""
        super().__init__(decoder, caches)
        self._lines = lines

    def propose(self, wanted: Mapping[str, int], active: Sequence[Progress]) -> dict[str, list[int]]:
        drafts = super().propose(wanted, active)
        for progress in active:
            self._repeat(drafts[progress.request.id], progress)
        return drafts

    def _repeat(self, draft: list[int], progress: Progress) -> None:
        line, number, done = self._lines.get(progress.request.id), len(progress.rounds), len(progress.token_ids)
        wrong_at = len(draft) - 1
        if line is not None and number < len(line.accepted):
            wrong_at = line.accepted[number]
            accepted = line.token_ids[done : done + wrong_at]
            draft[: len(accepted)] = accepted[: len(draft)]
        if 0 <= wrong_at < len(draft):
            draft[wrong_at] = (draft[wrong_at] + 1) % self.decoder.architecture.vocab_size


@dataclass(frozen=True, slots=True)
class _Output:
    """What an arm answered."""

    token_ids: Sequence[int]
    finish_reason: str


def _output(decoded: Decoded | None) -> _Output | None:
    if decoded is None:
        return None
    return _Output(list(decoded.generation.token_ids), decoded.generation.finish_reason)


def _same(generation: Generation, line: RequestLine, step: int) -> bool:
    """Whether the token at `step` and all before it are those recorded."""
    return generation.token_ids[: step + 1] == list(line.token_ids[: step + 1])
