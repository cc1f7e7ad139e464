"""How many tokens to draft next: a fixed number, or one that follows what the request's own rounds accepted.

The adaptive rule takes a draft's tokens to be right independently, each with probability r. A draft of k tokens then
commits 1 + r + ... + r^k tokens for k drafting steps and one verification, which costs as much as `verify_cost` of
them; the rule takes the k with the most tokens per cost. r is estimated from the request's rounds, recent ones
counting most:

    r = (sum of w accepted + A) / (sum of w (accepted + rejected) + A + 1),   w = DECAY ** (rounds since)

where rejected is 1 if the round rejected a draft and else 0: what follows a rejected draft was never judged.
The rule sees nothing but that request's counts, neither clocks nor other requests, so that records do not depend on
the batch around a request and come again byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence

from vcbench.config.schema import AdaptiveDraft
from vcbench.engine.types import Round

DECAY = 0.9
WINDOW = 64
"""Rounds looked back at; older ones would weigh less than DECAY ** 64 = 0.1 %."""
PRIOR_ACCEPTED = 8.0
"""A: accepted drafts assumed before the first round, beside one rejected; r begins at 8 / 9."""


def draft_length(rule: int | AdaptiveDraft, rounds: Sequence[Round]) -> int:
    """Tokens to draft in the round that follows `rounds`, before the request's cap is looked at."""
    return rule if isinstance(rule, int) else most_tokens_per_cost(acceptance_rate(rounds), rule)


def acceptance_rate(rounds: Sequence[Round]) -> float:
    """r: the estimated probability that a draft token is right if those before it are; above 0 and below 1."""
    accepted, judged, weight = PRIOR_ACCEPTED, PRIOR_ACCEPTED + 1.0, 1.0
    for done in reversed(rounds[-WINDOW:]):
        weight *= DECAY
        accepted += weight * done.accepted
        judged += weight * (done.accepted + (done.accepted < done.drafted))
    return accepted / judged


def most_tokens_per_cost(rate: float, bounds: AdaptiveDraft) -> int:
    """The k within bounds with the largest (1 + r + ... + r^k) / (k + verify_cost); of equals the shortest.

    Gains shrink and costs grow evenly, so that the first k after which the ratio falls is the best.
    """
    power, expected = 1.0, 1.0
    for _ in range(bounds.min):
        power *= rate
        expected += power
    length = bounds.min
    while length < bounds.max:
        following = expected + power * rate
        if following * (length + bounds.verify_cost) <= expected * (length + 1 + bounds.verify_cost):
            break
        power, expected, length = power * rate, following, length + 1
    return length
