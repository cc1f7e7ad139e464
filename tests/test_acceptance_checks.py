"""Every numbered check of the compressors' specification is named by a test, or by the measurement that makes it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COUNTS = {
    "ACC": 4, "GEN": 7, "DROP": 6, "KVZ": 3, "SNAP": 3, "STR": 3, "H2O": 3, "EA": 4, "Q": 4, "KIVI": 6, "KVQ": 6,
    "ROT": 5, "TQ": 9, "FP8": 3, "SPEC": 3,
}  # fmt: skip
"""How many checks each family has; A-KVQ-6 is the script's."""
NAMED = re.compile(r"A-([A-Z0-9]+)-(\d)((?:(?:, | and |, and )-\d)*)")
PLACES = (*sorted((ROOT / "tests").rglob("test_*.py")), ROOT / "benchmarks" / "quality" / "perplexity.py")


def test_every_check_is_made_somewhere() -> None:
    made = {
        f"A-{family}-{number}"
        for path in PLACES
        if path != Path(__file__)
        for family, first, rest in NAMED.findall(path.read_text("utf-8"))
        for number in (first, *re.findall(r"-(\d)", rest))
    }
    asked = {f"A-{family}-{number}" for family, count in COUNTS.items() for number in range(1, count + 1)}

    assert asked - made == set()
    assert made - asked == set()
