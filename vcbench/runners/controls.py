"""The control ladder: a forked request decoded again under one changed condition after the other.

The first rung that reproduces the fork names its cause. A rung reproduces it where its output leaves the recorded
reference at the fork or before it, or ends otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vcbench.compressors.none import NoCompression, NoneOptions
from vcbench.engine.cache import KVCache
from vcbench.engine.cells import CellSetup
from vcbench.engine.decoder import Block, Decoder
from vcbench.engine.levels import CacheLevel
from vcbench.engine.progress import Progress
from vcbench.engine.types import Generation
from vcbench.lossless.audit import with_logits
from vcbench.lossless.cards import Card, Control, Side, TopToken
from vcbench.lossless.result import CheckResult
from vcbench.lossless.steps import top_of
from vcbench.metrics.text import first_divergence
from vcbench.records.printable import printable
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import RequestLine
from vcbench.runners.replay import Decoded, Replay

FORKS_PER_CELL = 2
OTHER_BATCH = 4
FLOAT32 = "float32"


def run_controls(result: CheckResult, run: Run, *, limit: int | None = FORKS_PER_CELL) -> CheckResult:
    """The result whose cards say which control reproduces the fork, for the first forks of each cell.

    Cost: some ten decodings of the request for each card, and loading the model.
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
    return replace(result, cards=tuple(cards))


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
            ("draft and verify with compression off", "draft-verify logic", self._uncompressed),
            ("float32 in both arms", "compression leaking into verification", self._float32),
        )

    def _repeated(self) -> Outcome:
        return self._against_reference(self._decode(self.full, self.batch))

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
        output = self.reference.token_ids
        snapshot = self.replay.snapshot(self.task, self.name)
        cache, wrong = snapshot.prefill.cache, None
        progress = Progress(snapshot.request)
        if not progress.selector.takes_best:
            return Outcome(None, "the tokens are not chosen by the logits alone")
        for start in range(0, min(self.step, len(output) - 1), width):
            fed = list(output[start:-1][:width])
            choices = self.replay.decoder.rows.arg_max(self.replay.decoder.forward([Block(cache, fed)]))
            cache.commit(len(fed))
            wrong = first_divergence(output[start + 1 : start + 1 + len(fed)], choices)
            if wrong is not None:
                wrong += start + 1
                break
        cache.rewind(len(snapshot.request.prompt_ids))
        found = wrong is not None and wrong <= self.step
        return Outcome(found, f"leaves the reference at token {wrong}" if found else "")

    def _warm(self) -> Outcome:
        """A fresh prefill against a snapshot that the method has used."""
        self._decode(self.setup, self.batch)
        warm = self._against_reference(self._decode(self.full, self.batch))
        for name in self.batch:
            self.replay.forget(self.task, name)
        cold = self._against_reference(self._decode(self.full, self.batch))
        if warm.reproduces == cold.reproduces:
            return Outcome(False)
        return Outcome(True, f"the {'warm' if warm.reproduces else 'cold'} one leaves the reference")

    def _uncompressed(self) -> Outcome:
        """Once with every draft right, once with drafts made wrong where the recorded rounds rejected one."""
        plain = replace(self.setup, compressor=NoCompression(NoneOptions()))
        outcome = self._against_reference(self._decode(plain, self.batch))
        if outcome.reproduces:
            return outcome
        engine = self.replay.engine
        rejected = {self.name: list(self.method.accepted)}

        def spoil(decoder: Decoder, caches: Mapping[str, KVCache]) -> CacheLevel:
            return Spoiled(decoder, caches, rejected)

        spoiled = engine.with_parts(replace(engine.parts("vericache"), drafter=spoil))
        found = self._against_reference(self.replay.decode(plain, self.task, self.batch, self.name, self.step, spoiled))
        return replace(found, detail=f"{found.detail}, with drafts made wrong" if found.reproduces else "")

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

    def _decode(self, setup: CellSetup, names: Sequence[str]) -> Decoded | None:
        return self.replay.decode(setup, self.task, names, self.name, self.step)

    def _against_reference(self, decoded: Decoded | None) -> Outcome:
        if decoded is None:
            return Outcome(True, "no result")
        ours = decoded.generation
        fork = first_divergence(self.reference.token_ids, ours.token_ids)
        if fork is not None and fork <= self.step:
            return Outcome(True, f"leaves the reference at token {fork}")
        if fork is None and ours.finish_reason != self.reference.finish_reason:
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
        return printable(self.replay.bench.tokenizer.decode([token], skip_special=False))

    def _line(self, cell: CellInfo) -> RequestLine:
        return self.replay.run.requests[cell.id, self.task, self.name]


class Spoiled(CacheLevel):
    """Proposes what the model says, but for one token of each draft: the first beyond what a round is to accept."""

    def __init__(self, decoder: Decoder, caches: Mapping[str, KVCache], accepted: Mapping[str, Sequence[int]]) -> None:
        """`accepted`: drafts to be accepted in each round of a request; beyond these rounds, all but the last one."""
        super().__init__(decoder, caches)
        self._accepted = accepted

    def propose(self, wanted: Mapping[str, int], active: Sequence[Progress]) -> dict[str, list[int]]:
        drafts = super().propose(wanted, active)
        for progress in active:
            self._spoil(drafts[progress.request.id], progress)
        return drafts

    def _spoil(self, draft: list[int], progress: Progress) -> None:
        planned, number = self._accepted.get(progress.request.id, ()), len(progress.rounds)
        at = planned[number] if number < len(planned) else len(draft) - 1
        if 0 <= at < len(draft):
            draft[at] = (draft[at] + 1) % self.decoder.architecture.vocab_size


def _same(generation: Generation, line: RequestLine, step: int) -> bool:
    """Whether the token at `step` and all before it are those recorded."""
    return generation.token_ids[: step + 1] == list(line.token_ids[: step + 1])
