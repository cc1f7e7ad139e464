"""The configuration that `vcbench init` writes: commented, for the quickstart's prompts or for one's own."""

from __future__ import annotations

import json
from dataclasses import dataclass

HEAD = """\
# {title}
#
#   vcbench run {path} --dry-run     what it would take: cells, prompts, bytes, time
#   vcbench run {path}               carry it out; the same command goes on after any interruption
#   vcbench compare {run}
#   vcbench check {run}              exit 0 only if every VeriCache answer equals full KV's
#
# `vcbench ls compressors` and `vcbench ls tasks` list what can be named here.
name: {name}

model:
  id: {model}
"""
OWN = """
tasks:
  - name: trace # your prompts: {form}
    path: {trace}
    # {lengths}
    limit: {limit} # {limit_why}
    max_context_tokens: {context} # {context_why}
    max_tokens: {tokens} # {tokens_why}
"""
STANDARD = """
tasks:
  - name: stdlib # explain, continue, summarise and test Python's own sources: real text that every machine has
    limit: 4 # of twelve prompts
    max_tokens: {tokens}
  - name: needle # a number hidden in long text: does compression lose it?
    lengths: [1000, 2000] # tokens of a prompt
    positions: [0.0, 0.5, 1.0] # where it stands: at the beginning, in the middle, at the end
    max_tokens: 16
  # Your own prompts instead: vcbench init --trace prompts.jsonl --output mine.yaml
"""
REST = """
engine:
  batch_size: {batch} # {batch_why}

methods: # at least one; every option of a method is written beside its `compressor`
  snapkv-4x: # keeps a quarter of the prompt's tokens, those that its last ones attend to
    compressor: snapkv
    factor: 4
  kivi-4bit: # keeps every token, in 4 bits
    compressor: kivi
    bits: 4

cells:
  - arm: full # the baseline: the whole cache, one token at a time
  - {{arm: lossy, method: snapkv-4x}} # decode on the compressed cache alone: fast, and the text drifts
  - {{arm: lossy, method: kivi-4bit}}
  - {{arm: vericache, method: snapkv-4x, draft_length: {short}}} # draft on it, verify on the full cache
  - {{arm: vericache, method: kivi-4bit, draft_length: {long}}} # nearly exact drafts may be longer
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPrompts:
    """What of the file of prompts is written down; every `..._why` is a comment."""

    trace: str
    form: str
    lengths: str
    limit: int
    limit_why: str
    context: int
    context_why: str
    tokens_why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Everything that is filled in. `run`: where the run will be; `tokens`: new tokens per request."""

    path: str
    run: str
    name: str
    model: str
    tokens: int
    batch: int
    batch_why: str
    on_gpu: bool
    own: OwnPrompts | None = None


def configuration(written: Written) -> str:
    """The text of the file."""
    own = written.own
    title = f"Your prompts in {own.trace}" if own else "A first configuration"
    short, long = (25, 40) if written.on_gpu else (8, 12)
    parts = [HEAD.format(title=_comment(title), path=_comment(written.path), run=_comment(written.run),
                         name=json.dumps(written.name), model=json.dumps(written.model))]  # fmt: skip
    if own is None:
        parts.append(STANDARD.format(tokens=written.tokens))
    else:
        parts.append(
            OWN.format(
                form=own.form,
                trace=json.dumps(own.trace, ensure_ascii=False),
                lengths=own.lengths,
                limit=own.limit,
                limit_why=own.limit_why,
                context=own.context,
                context_why=own.context_why,
                tokens=written.tokens,
                tokens_why=own.tokens_why,
            )
        )
    parts.append(REST.format(batch=written.batch, batch_why=written.batch_why, short=short, long=long))
    return "".join(parts)


def _comment(text: str) -> str:
    """The text on one line, as a comment has it."""
    return " ".join(text.split())
