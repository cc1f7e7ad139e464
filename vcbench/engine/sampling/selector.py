"""Which token follows a row of logits: arg-max, or a draw whose noise is keyed by (seed, request, position).

A draw is argmax(scores + Gumbel noise), which chooses each token with its softmax probability. Draft, verification and
baseline meet the same noise at the same position, so that they choose the same token from the same logits: what a
round commits is what decoding one by one would have drawn, and a draft from similar logits is mostly accepted.
A choice depends on its row's logits, on the tokens before it, on its position and on the request; on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from vcbench.config.limits import limits, within
from vcbench.engine.kernels.cpu.gumbel import gumbel_arg_max, gumbels
from vcbench.engine.sampling import processors
from vcbench.engine.sampling.noise import Noise
from vcbench.engine.sampling.processors import Ids, Scores
from vcbench.engine.types import Request
from vcbench.errors import RequestError

Row = NDArray[np.float32]


class Selector:
    """The rule by which one request's tokens are chosen. It has no state."""

    def __init__(self, request: Request, noise: Noise | None = None) -> None:
        """`noise` stands in for the request's own."""
        self.sampling = request.sampling
        self.takes_best = self.sampling.takes_best
        """Whether the engine's own arg-max decides and `choose` need not be asked."""
        self._noise = noise or Noise(self.sampling.seed or 0, request.id)
        self._stop_ids = np.array(sorted(request.stop_ids), np.int64)
        self._bias_ids = np.array(list(self.sampling.logit_bias), np.int64)
        self._bias = np.array(list(self.sampling.logit_bias.values()), np.float64)
        self._prompt = np.array(sorted(set(request.prompt_ids)), np.int64)

    def choose(self, logits: Row, output: Sequence[int], position: int) -> int:
        """The token at `position` of the output. logits: [V], finite. output: all tokens that precede it."""
        scores = self._processed(logits, output, position)
        if self.sampling.temperature == 0:
            return int(np.argmax(scores))
        scores, ids = self._drawable(scores)
        return int(gumbel_arg_max(scores, ids, self._noise.words(position, len(logits))))

    def margins(self, logits: Row, output: Sequence[int], position: int) -> Scores:
        """A rise of each token's logit that is enough for `choose` to take it, [V]; 0 for the one it takes.

        A token that a filter left out must first reach the lowest score that the filter kept (less is enough where it
        thereby displaces the one that was taken). Infinite for one that is forbidden.
        """
        scores = self._processed(logits, output, position)
        if self.sampling.temperature == 0:
            return np.asarray(scores.max() - scores)
        scaled = processors.scale(scores, self.sampling.temperature)
        kept, ids = self._drawable(scores)
        perturbed = scaled + gumbels(self._noise.words(position, len(logits)))
        missing = np.maximum(perturbed[ids].max() - perturbed, 0)
        outside = np.ones(len(scaled), bool)
        outside[ids] = False
        missing[outside] = np.maximum(missing, kept.min() - scaled)[outside]
        return np.asarray(missing * self.sampling.temperature)

    def law(self, logits: Row, output: Sequence[int], position: int) -> Scores:
        """The probability of each token, [V], under `choose` with random noise."""
        scores = self._processed(logits, output, position)
        result = np.zeros_like(scores)
        if self.sampling.temperature == 0:
            result[np.argmax(scores)] = 1
            return result
        scores, ids = self._drawable(scores)
        weights = np.exp(scores)
        result[ids] = weights / weights.sum()
        return result

    def _processed(self, logits: Row, output: Sequence[int], position: int) -> Scores:
        """Bias, penalties and the ban on stop ids."""
        sampling, scores = self.sampling, logits.astype(np.float64)
        scores[self._bias_ids] += self._bias
        if sampling.repetition_penalty != 1:
            seen = np.union1d(self._prompt, np.asarray(output, np.int64))
            processors.divide_repeated(scores, seen, sampling.repetition_penalty)
        if sampling.frequency_penalty or sampling.presence_penalty:
            processors.subtract_counts(scores, output, sampling.frequency_penalty, sampling.presence_penalty)
        if position < sampling.min_tokens:
            scores[self._stop_ids[self._stop_ids < len(scores)]] = -np.inf
        return scores

    def _drawable(self, scores: Scores) -> tuple[Scores, Ids]:
        """Temperature, top-k, top-p, min-p: the scores that are left, relative to the largest, and their ids."""
        sampling = self.sampling
        scores = processors.scale(scores, sampling.temperature)
        ids = processors.best_k(scores, sampling.top_k or len(scores))
        if sampling.top_p < 1:
            ids = ids[processors.nucleus(scores[ids], sampling.top_p)]
        if sampling.min_p > 0:
            ids = ids[processors.near_best(scores[ids], sampling.min_p)]
        return scores[ids], ids


def check_sampling(request: Request, vocab_size: int) -> None:
    """Raises RequestError for sampling that cannot be carried out, naming the setting."""
    sampling, who = request.sampling, f"request {request.id}"
    for spec in fields(sampling):
        value = getattr(sampling, spec.name)
        numbers = value.values() if isinstance(value, Mapping) else (value,)
        if not all(number is None or (math.isfinite(number) and within(number, spec)) for number in numbers):
            words = " and ".join(["finite", *limits(spec)])
            raise RequestError(f"{who}: {spec.name} is {value}; it must be {words}")
    beyond = [token for token in sampling.logit_bias if not 0 <= token < vocab_size]
    if beyond:
        raise RequestError(f"{who}: logit_bias names token {beyond[0]}, outside the vocabulary of {vocab_size}")
    if sampling.min_tokens > request.max_tokens:
        raise RequestError(f"{who}: min_tokens {sampling.min_tokens} is above max_tokens {request.max_tokens}")
    if sampling.min_tokens and request.stop_ids.issuperset(range(vocab_size)):
        raise RequestError(f"{who}: min_tokens forbids every token, as all of them are stop ids")
