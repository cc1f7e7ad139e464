"""How a quantised cache turns tokens into codes: bits, groups, and what stays exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How tokens become codes.

    Keys are grouped along `key_axis`: `channel` puts `key_group` consecutive tokens of one channel into a group,
    `token` a whole head of one token. Values: groups of `value_group` channels within a token. Keys are turned into
    codes `key_flush` tokens at a time; the last `value_residual` values stay exact.
    """

    key_bits: int
    value_bits: int
    key_axis: Literal["channel", "token"]
    key_group: int
    value_group: int
    symmetric: bool
    key_flush: int = 1
    value_residual: int = 0

    @classmethod
    def per_token(cls, head_dim: int, *, key_bits: int, value_bits: int, symmetric: bool) -> Scheme:
        """One group for each head of a token, in keys and values alike; nothing stays exact."""
        return cls(
            key_bits=key_bits,
            value_bits=value_bits,
            key_axis="token",
            key_group=head_dim,
            value_group=head_dim,
            symmetric=symmetric,
        )

    def quantised_keys(self, committed: int) -> int:
        """Tokens whose keys are codes, of `committed` tokens."""
        return committed - committed % self.key_flush

    def quantised_values(self, committed: int) -> int:
        """Tokens whose values are codes."""
        return max(0, committed - self.value_residual)
