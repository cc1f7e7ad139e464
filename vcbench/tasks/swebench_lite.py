"""SWE-bench Lite: an issue and the files that it concerns, answered by a patch.

Source: Jimenez et al., SWE-bench, arXiv 2310.06770; the patch's form as a measure of what compression costs is from
VeriCache (arXiv 2605.17613, figure 3). Whether a patch resolves its issue needs the benchmark's containers:
`vcbench.tasks.swebench.resolved`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vcbench.config.paths import user_path
from vcbench.errors import TaskError
from vcbench.records.output import write_output
from vcbench.registry import register
from vcbench.tasks.base import (
    Answer,
    Exclusion,
    Metric,
    Prompt,
    PromptTokenizer,
    Question,
    Task,
    Value,
    as_needed,
    checked,
    excluding,
)
from vcbench.tasks.budget import fit, too_long
from vcbench.tasks.rows import Row, identified
from vcbench.tasks.source import SplitOptions, source_rows
from vcbench.tasks.swebench.checkout import oracle_files
from vcbench.tasks.swebench.patch import Parsed, applies, extract_patch, file_f1, parse_patch, swebench_patch
from vcbench.tasks.swebench.prompt import build_text, is_marker, shown_files, split_code

SAMPLE_FILE = "swebench_lite.jsonl"
NAME = "swebench-lite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SplitOptions):
    """Where the instances and their prompts come from, and how long prompts may be."""

    checkouts: str = field(
        default="",
        metadata={"doc": "A directory of git clones, from which prompts are made where rows have no `text`."},
    )
    max_context_tokens: int | None = field(
        default=None,
        metadata={"doc": "Longer prompts lose lines from the middle of their files; null for no limit.", "minimum": 1},
    )
    format: Literal["chat", "raw"] = field(
        default="chat", metadata={"doc": "`chat` makes the prompt the user's turn; `raw` adds no token at all."}
    )


@register("task", NAME)
class SwebenchLiteTask(Task):
    """Instances of SWE-bench Lite with prompts that hold the files to change; without options, an embedded sample."""

    Options = Options
    summary = "SWE-bench Lite: answer an issue with a patch (without options: six synthetic instances)"
    metrics = (
        Metric(name="patch_extracted", summary="a diff is in the answer"),
        Metric(name="patch_format_rate", summary="the patch parses and has a file and a hunk", headline=True),
        Metric(name="patch_apply_rate", summary="git can apply the patch to the prompt's files", headline=True),
        Metric(name="swebench_format_rate", summary="patch_format_rate of what SWE-bench's own extractor finds"),
        Metric(name="swebench_apply_rate", summary="patch_apply_rate of what SWE-bench's own extractor finds"),
        Metric(name="file_f1", summary="F1 of the files changed against the gold patch's", kind="mean"),
        Metric(name="same_patch_as_full", summary="the same patch as full KV's; only where one of them has a patch"),
    )

    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        """The instances in their order; bad rows and those over `max_context_tokens` even without code are excluded."""
        options = self.options
        assert isinstance(options, Options)
        self.excluded = []
        made: list[Prompt] = []
        for name, row in as_needed(identified(source_rows(options, SAMPLE_FILE), "instance_id"), made, limit):
            with excluding(self.excluded, name):
                _check(row)
                prompt = _prompt(name, row, tokenizer, options)
                if isinstance(prompt, Exclusion):
                    self.excluded.append(prompt)
                else:
                    made.append(prompt)
        return checked(made, task=NAME, excluded=self.excluded)

    def score(self, question: Question, answer: Answer, reference: Answer | None) -> Mapping[str, Value]:
        """The metrics of one answer. Cost: one or two runs of git, about 10 ms each."""
        patch, theirs = extract_patch(answer.text), swebench_patch(answer.text)
        parsed = parse_patch(patch) if patch is not None else Parsed(fault="is none")
        files = question.target["files"]
        applied = _applies(patch, parsed, files)
        found = parse_patch(theirs)
        return {
            "patch_extracted": patch is not None,
            "patch_format_rate": parsed.valid,
            "patch_apply_rate": applied,
            "swebench_format_rate": found.valid,
            "swebench_apply_rate": applied if theirs == patch else _applies(theirs, found, files),
            "file_f1": file_f1(parsed.paths, parse_patch(question.target["patch"]).paths),
            "same_patch_as_full": _same_patch(patch, reference),
        }

    def export(self, cell: str, answers: Sequence[tuple[Question, Answer]], directory: Path) -> list[Path]:
        """The cell's predictions as `swebench eval` takes them; an answer without a diff is an empty patch."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{model_name(cell)}.jsonl"
        lines = [json.dumps(prediction(cell, question, answer)) for question, answer in answers]
        write_output(path, "".join(f"{line}\n" for line in lines).encode("ascii"))
        return [path]


def model_name(cell: str) -> str:
    """The cell's label as a `model_name_or_path`, which is also the name of a directory."""
    return re.sub(r"[^\w.-]+", "-", cell).strip("-")


def prediction(cell: str, question: Question, answer: Answer) -> dict[str, Any]:
    """One line of a predictions file."""
    return {
        "instance_id": question.id,
        "model_name_or_path": model_name(cell),
        "model_patch": extract_patch(answer.text) or "",
    }


def _check(row: Row) -> None:
    """Refuses a row without what every instance has. The columns that only swebench 5 has may be absent."""
    for name in ("repo", "base_commit", "problem_statement"):
        row.text(name)
    parsed = parse_patch(row.text("patch"))
    if not parsed.valid:
        row.refuse(f"field `patch` is not a patch: it {parsed.fault}")


def _prompt(name: str, row: Row, tokenizer: PromptTokenizer, options: Options) -> Prompt | Exclusion:
    text = _text(row, options)
    before, code, after = split_code(text)

    def render(shown: str) -> list[int]:
        whole = f"{before}{shown}{after}"
        if options.format == "raw":
            return tokenizer.encode(whole)
        return tokenizer.chat([{"role": "user", "content": whole}])

    limit = options.max_context_tokens
    fitted = fit(code, render, limit, keep=is_marker)
    if isinstance(fitted, int):
        return too_long(name, fitted, limit or 0)
    return Prompt(
        id=name,
        ids=fitted.ids,
        document_sha256=hashlib.sha256(text.encode()).hexdigest(),
        target={"patch": row.text("patch"), "files": shown_files(text)},
        meta={
            "instance": {key: value for key, value in row.values.items() if key not in ("text", "patch")},
            "code_lines": fitted.lines,
            "code_lines_shown": fitted.kept_lines,
            "source": options.source,
            "synthetic": bool(row.values.get("synthetic")),
        },
    )


def _text(row: Row, options: Options) -> str:
    if row.has("text"):
        return row.text("text")
    if not options.checkouts:
        row.refuse(
            "field `text`, the prompt, is missing; use a data set with prompts, such as "
            "princeton-nlp/SWE-bench_Lite_oracle, or name a directory of git clones as the task's `checkouts`"
        )
    directory = user_path(options.checkouts)
    if not directory.is_dir():
        raise TaskError(f"task {NAME!r}: `checkouts` {directory} is not a directory")
    return build_text(row.text("problem_statement"), oracle_files(row, directory))


def _applies(patch: str | None, parsed: Parsed, files: Mapping[str, str] | None) -> bool | None:
    """Whether git takes the patch on the prompt's files; None where they are not known."""
    return None if files is None else patch is not None and parsed.valid and applies(patch, files)


def _same_patch(patch: str | None, reference: Answer | None) -> bool | None:
    if reference is None:
        return None
    other = extract_patch(reference.text)
    return None if patch is None and other is None else patch == other
