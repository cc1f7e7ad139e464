"""A tiny model whose tokenizer reads text, letter by letter."""

from __future__ import annotations

import json
import shutil
import string
from pathlib import Path

from vcbench.models.tiny import SPECIAL, tiny_model, words

LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits + ".,:;()[]_='\"#-"


def lettered_model(directory: Path, seed: int = 3) -> Path:
    """The tiny random model in a directory of its own, with a token for each of `LETTERS`, blank and line end."""
    model = directory / f"lettered-{seed}"
    shutil.copytree(tiny_model(seed), model)
    spelled = [*SPECIAL, "Ġ", "Ċ", *LETTERS][: len(words())]
    described = json.loads((model / "tokenizer.json").read_text())
    described["model"]["vocab"] = {token: index for index, token in enumerate(spelled)}
    (model / "tokenizer.json").write_text(json.dumps(described))
    return model
