"""`vcbench init`: writes a commented configuration to begin with, for one's own prompts where they are given."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vcbench.cli.completion import complete_model
from vcbench.cli.output import WRITTEN, next_command, notes
from vcbench.errors import UsageError

if TYPE_CHECKING:
    from vcbench.config.template import OwnPrompts
    from vcbench.models.architecture import Architecture
    from vcbench.tasks.base import PromptTokenizer

EMBEDDED = "smollm2-135m"


def init(
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your prompts: JSON lines, a JSON array or parquet of OpenAI messages, prompts, texts, ShareGPT "
            "conversations or recorded requests.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write.")] = WRITTEN,
    model: Annotated[
        str, typer.Option(help="A catalogue name, a hub id or a local directory.", autocompletion=complete_model)
    ] = EMBEDDED,
    name: Annotated[str | None, typer.Option(help="The run's name; that of the file unless given.")] = None,
) -> None:
    """Write a commented configuration to begin with; a file that is there is never overwritten.

    With --trace it fits your prompts: their form is recognised, their lengths are estimated, and limits and batch size
    are chosen to go with them. Every line of the file is checked, and nothing is written if one cannot be asked.
    """
    from vcbench.config.template import Written, configuration

    if output.exists() or output.is_symlink():
        raise UsageError(f"{output} exists and is not overwritten; give another file with --output")
    if output.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{output}: a configuration's name ends in .yaml")
    architecture, tokenizer = _model(model)
    on_gpu, memory = _device()
    run_name = _name(name, trace, output)
    own, tokens, longest = None, 128, 2000
    if trace is not None:
        own, tokens, longest = _own(trace, architecture, tokenizer)
    batch, why = _batch(architecture, longest + tokens, on_gpu=on_gpu, memory=memory)
    text = configuration(
        Written(
            path=str(output),
            run=f"runs/{run_name}",
            name=run_name,
            model=model,
            tokens=tokens,
            batch=batch,
            batch_why=why,
            on_gpu=on_gpu,
            own=own,
        )
    )
    _write(output, text)
    print(output)
    if own is not None:
        notes().print(f"{trace}: {own.form}; {own.lengths}", markup=False)
    next_command("vcbench", "run", output, "--dry-run")


def _model(model: str) -> tuple[Architecture, PromptTokenizer]:
    """The model's shape, and its tokenizer or a rough one. Raises UsageError for a model of unknown shape."""
    from vcbench.cli.run import architecture_of
    from vcbench.config.schema import ModelConfig
    from vcbench.errors import ModelError
    from vcbench.models.rough import RoughTokenizer
    from vcbench.models.store import resolve_model
    from vcbench.models.tokenizer import Tokenizer

    try:
        files = resolve_model(ModelConfig(id=model))
        return files.architecture, Tokenizer.from_files(files)
    except ModelError as error:
        architecture = architecture_of(model)
        if architecture is None:
            raise UsageError(f"the shape of {model} is not known before it is here: {error}") from error
        return architecture, RoughTokenizer()


def _device() -> tuple[bool, int]:
    """Whether runs use a GPU here, and the memory that holds weights and caches."""
    import psutil
    import torch

    if torch.cuda.is_available():
        return True, int(torch.cuda.get_device_properties(0).total_memory)
    return False, int(psutil.virtual_memory().available)


def _own(trace: Path, architecture: Architecture, tokenizer: PromptTokenizer) -> tuple[OwnPrompts, int, int]:
    """What is written of the prompts, new tokens per request, and the tokens of the longest prompt asked."""
    from vcbench.config.template import OwnPrompts
    from vcbench.models.rough import RoughTokenizer
    from vcbench.runners.sizing import FIRST_LOOK, answer_tokens, context_tokens, measure

    measured = measure(trace, tokenizer)
    context = architecture.max_context
    tokens, tokens_why = answer_tokens(measured, context)
    budget, budget_why = context_tokens(measured, context, tokens)
    if measured.lengths[0] > budget:
        raise UsageError(
            f"{trace}: even the shortest prompt, about {measured.lengths[0]} tokens, does not fit the model's context "
            f"of {context}; give a model of longer context with --model"
        )
    count = len(measured.lengths)
    limit = min(count, FIRST_LOOK)
    roughly = "about " if isinstance(tokenizer, RoughTokenizer) else ""
    own = OwnPrompts(
        trace=str(trace),
        form=measured.form,
        lengths=f"{count} prompts of {roughly}{measured.lengths[0]} to {measured.lengths[-1]} tokens, "
        f"half of them below {measured.at(0.5)}",
        limit=limit,
        limit_why="all of them" if limit == count else f"the first {limit} of {count}, for a first look",
        context=budget,
        context_why=budget_why,
        tokens_why=tokens_why,
    )
    return own, tokens, min(budget, measured.lengths[-1])


def _batch(architecture: Architecture, tokens: int, *, on_gpu: bool, memory: int) -> tuple[int, str]:
    """Requests decoded together, and why so many."""
    from vcbench.runners.sizing import batch_size

    size = batch_size(architecture, tokens, memory=memory, element_bytes=2 if on_gpu else 4)
    if not on_gpu:
        size = min(size, 2)
        return size, "answers do not depend on it; several batches give the throughput an interval"
    return size, f"caches of {size} requests fit the {memory / 2**30:.0f} GiB of this GPU beside the weights"


def _name(given: str | None, trace: Path | None, output: Path) -> str:
    """The run's name. Raises UsageError for one that cannot be a directory's."""
    from vcbench.config.checks import NAME

    if given is not None:
        if not NAME.fullmatch(given):
            raise UsageError(f"{given!r} is no name for a run: letters, digits, `.`, `_` and `-`, 100 at most")
        return given
    source = trace if trace is not None and output == WRITTEN else output
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", source.stem).strip("-.")[:100]
    if source == WRITTEN:
        made = "first"
    return made if NAME.fullmatch(made) else "mine"


def _write(path: Path, text: str) -> None:
    """The file, made anew. Raises UsageError where it cannot be."""
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists and is not overwritten; give another file with --output") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path} cannot be written: {reason}; give another place with --output") from error
