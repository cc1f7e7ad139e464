"""Compiles and renders chat templates in a process of its own, with limits of time and memory; see `template_process`.

A template is a program that a model's directory brings along. jinja2's sandbox keeps it from files, not from endless
loops.
Run as a program it answers one JSON line for each JSON line on stdin.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 2**30
LARGEST_CHARS = 100_000_000
REFUSED = (
    TemplateError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    NotImplementedError,
    RuntimeError,
    AssertionError,
)


def serve(cpu_s: float) -> None:
    """Answers requests until stdin ends; beyond `cpu_s` seconds for one of them the system ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        answer = json.dumps(answered(json.loads(line)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """`text` of a rendered template, or `takes_parts` and `reads` where no `variables` are given; else `error`."""
    try:
        template, facts = compiled(request["source"], request["now"])
    except TemplateSyntaxError as error:
        return {"error": f"{error} (line {error.lineno})"}
    except REFUSED as error:
        return {"error": explained(error)}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY_BYTES / 2**30:.0f} GiB of memory"}
    if request["variables"] is None:
        return facts
    try:
        text = template.render(**request["variables"])
    except REFUSED as error:
        return {"error": explained(error)}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY_BYTES / 2**30:.0f} GiB of memory"}
    if len(text) > LARGEST_CHARS:
        return {"error": f"it writes {len(text):,} characters; supported: at most {LARGEST_CHARS:,}"}
    return {"text": text}


def explained(error: Exception) -> str:
    """The error in words, also where it has none of its own."""
    if isinstance(error, RecursionError):
        return "it nests or calls itself too deeply"
    return str(error.args[-1] if error.args else "") or type(error).__name__


@lru_cache(maxsize=16)
def compiled(source: str, now: str) -> tuple[Template, dict[str, Any]]:
    """The template, and what its text tells: whether it loops over contents, and the variables that it reads."""
    environment = make_environment(datetime.fromisoformat(now))
    parsed = environment.parse(source)
    facts = {"takes_parts": _reads_parts(parsed), "reads": sorted(meta.find_undeclared_variables(parsed))}
    return environment.from_string(source), facts


def make_environment(now: datetime) -> Environment:
    """What transformers offers to templates, with `now` as the time of day."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = now.strftime
    return environment


def _reads_parts(template: nodes.Template) -> bool:
    """Whether the template loops over a content, and so takes lists of parts.

    Asking `content is string` is no sign: Qwen3-Coder's does and then joins every content to text.
    """
    return any(_ends_in_content(loop.iter) for loop in template.find_all(nodes.For))


def _ends_in_content(node: nodes.Node | None) -> bool:
    if isinstance(node, nodes.Filter):
        return _ends_in_content(node.node)
    if isinstance(node, nodes.Name):
        return node.name == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)
