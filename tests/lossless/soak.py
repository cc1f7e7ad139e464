"""The nightly soak: hundreds of requests under drawn conditions, and full KV against an independent implementation.

`python -m tests.lossless.soak` (or `make soak`) runs 300 requests on tiny models and the embedded one, with any method,
a draft length of 1 to 40 or an adaptive one, the full cache in memory or on disk, a batch of 1 to 8, greedy or sampled:
0 violations of 300 shows a rate below 1 %. Stopped, the same command takes up where it was. Then every fault that can
be injected must turn the gate on the embedded model, and full KV of the bundled engine is compared with transformers
(eager, float32).
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from vcbench.engine.environment import prepare

prepare()

from vcbench import registry  # noqa: E402 -- torch reads its settings when it is imported
from vcbench.backends.bundled.calibrations import fit_model  # noqa: E402
from vcbench.calibration.text import Samples  # noqa: E402
from vcbench.config.options import build_options  # noqa: E402
from vcbench.config.sampling import Sampling  # noqa: E402
from vcbench.config.schema import (  # noqa: E402
    AdaptiveDraft,
    CellConfig,
    DraftLength,
    EngineConfig,
    MethodConfig,
    MetricsConfig,
    ModelConfig,
    RunConfig,
    TaskConfig,
    Tier,
)
from vcbench.forensics.gate import demo_run, run_for_gate  # noqa: E402
from vcbench.forensics.tiny import tiny_config  # noqa: E402
from vcbench.lossless.check import check_run  # noqa: E402
from vcbench.lossless.faults import FAULTS  # noqa: E402
from vcbench.lossless.outcome import CheckResult  # noqa: E402
from vcbench.lossless.result import Verdict  # noqa: E402
from vcbench.metrics.interval import upper_bound  # noqa: E402
from vcbench.models.store import resolve_model  # noqa: E402
from vcbench.models.tiny import SPECIAL, tiny_model, words  # noqa: E402
from vcbench.models.tokenizer import Tokenizer  # noqa: E402
from vcbench.runners.plan import label  # noqa: E402
from vcbench.runners.run import execute  # noqa: E402

EMBEDDED = "smollm2-135m"
CELLS = 3
"""VeriCache cells a group; each answers all of the group's prompts."""
PROMPTS = 4
GREEDY_SHARE = 0.6
ADAPTIVE_SHARE = 0.3
DISK_SHARE = 0.25
STOPPING = ("eos_only_checked_at_block_end", "cap_before_stop")
"""Faults that need an output to end inside a block, and one that could have reached the cap."""
SAMPLED = (
    Sampling(temperature=0.8),
    Sampling(temperature=1.0, top_p=0.9),
    Sampling(temperature=0.7, top_k=20, repetition_penalty=1.2),
    Sampling(repetition_penalty=1.3, presence_penalty=0.5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a group of requests runs on. `prompt_tokens`: shortest and longest prompt."""

    model: str
    prompt_tokens: tuple[int, int]
    max_tokens: int
    ids: list[int]


@dataclass(slots=True)
class Tally:
    """Everything seen so far."""

    requests: int = 0
    tokens: int = 0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, result: CheckResult, group: str) -> None:
        """Takes in a group's verdicts."""
        self.requests += result.n
        self.tokens += result.tokens
        for cell in result.cells:
            self.verdicts += cell.counts
            self.methods[cell.cell.compressor or ""] += len(cell.verdicts)
        wrong = [v for v in result.verdicts if v.verdict is not Verdict.IDENTICAL]
        self.problems += [f"{group} {v.request}: {v.verdict} {v.detail}" for v in wrong]
        self.problems += [f"{group}: {problem}" for problem in result.problems]

    @property
    def passed(self) -> bool:
        """Whether every request equals full KV bit for bit."""
        return not self.problems and self.verdicts[Verdict.IDENTICAL] == self.requests > 0

    def summary(self) -> str:
        """The result in one line."""
        bound = upper_bound(self.requests - self.verdicts[Verdict.IDENTICAL], self.requests)
        shown = "unknown" if bound is None else f"{100 * bound:.3g} %"
        return (
            f"{self.verdicts[Verdict.IDENTICAL]} of {self.requests} requests bitwise identical to full KV "
            f"({self.tokens:,} tokens, {len(self.methods)} methods); violation rate below {shown} at 95 % confidence"
        )


def tiny_ground(seed: int) -> Ground:
    """A tiny random model."""
    ids = list(range(len(SPECIAL), len(words())))
    return Ground(model=str(tiny_model(seed)), prompt_tokens=(40, 300), max_tokens=48, ids=ids)


def embedded_ground() -> Ground:
    """The embedded model on the standard library's own documentation."""
    tokenizer = Tokenizer.from_files(resolve_model(ModelConfig(id=EMBEDDED)))
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    return Ground(model=EMBEDDED, prompt_tokens=(200, 900), max_tokens=48, ids=tokenizer.encode(text[:400_000]))


def group_config(number: int, ground: Ground, directory: Path, *, seed: int) -> RunConfig:
    """One group: four drawn prompts, full KV and three drawn VeriCache cells, one drawn batch size."""
    draw = random.Random(f"{seed}:{number}")
    name = f"group-{number:03}"
    prompts = directory / f"{name}.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in drawn_prompts(draw, ground)))
    architecture = resolve_model(ModelConfig(id=ground.model)).architecture
    methods, cells = {}, [CellConfig(arm="full")]
    while len(cells) <= CELLS:
        compressor = draw.choice(registry.names("compressor"))
        options = registry.lookup("compressor", compressor).Options()
        if compressor in methods or registry.lookup("compressor", compressor).unsupported(options, architecture):
            continue
        values = {key: getattr(options, key) for key in options.__dataclass_fields__}
        if registry.lookup("compressor", compressor).calibration_need(options) is not None:
            values["calibration"] = str(fitted(compressor, values, ground, directory))
        methods[compressor] = MethodConfig(compressor=compressor, options=values)
        tier: Tier = "disk" if draw.random() < DISK_SHARE else "memory"
        cells.append(CellConfig(arm="vericache", method=compressor, draft_length=drawn_length(draw), full_cache=tier))
    trace = build_options("task", "trace", {"path": str(prompts)})
    task = TaskConfig(
        name="trace",
        max_tokens=ground.max_tokens,
        sampling=Sampling() if draw.random() < GREEDY_SHARE else draw.choice(SAMPLED),
        options={key: getattr(trace, key) for key in trace.__dataclass_fields__},
    )
    return RunConfig(
        name=name,
        model=ModelConfig(id=ground.model, dtype="float32", device="cpu"),
        tasks=(task,),
        cells=tuple(cells),
        methods=methods,
        engine=EngineConfig(batch_size=draw.randint(1, 8), threads=1 if ground.model != EMBEDDED else 0),
        metrics=MetricsConfig(divergence=False),
        seed=number,
        output_dir=str(directory),
    )


def fitted(compressor: str, options: Mapping[str, object], ground: Ground, directory: Path) -> Path:
    """The file of a small fit of a method to the ground's model, made at its first use."""
    path = directory / f"{Path(ground.model).name}-{compressor}.safetensors"
    if not path.exists():
        draw = random.Random(compressor)
        ids = tuple(tuple(draw.choices(ground.ids, k=128)) for _ in range(4))
        model = ModelConfig(id=ground.model, dtype="float32", device="cpu")
        fit_model(model, compressor, options, Samples(ids=ids, data={"source": "soak"}), output=path)
    return path


def drawn_length(draw: random.Random) -> DraftLength:
    """A fixed draft length, or bounds of an adaptive one."""
    if draw.random() >= ADAPTIVE_SHARE:
        return draw.randint(1, 40)
    least = draw.randint(1, 10)
    return AdaptiveDraft(min=least, max=draw.randint(least, 40), verify_cost=draw.choice((1.0, 4.0, 12.0)))


def drawn_prompts(draw: random.Random, ground: Ground) -> Iterator[dict[str, object]]:
    """Random syllables, or consecutive tokens of real text."""
    for number in range(PROMPTS):
        length = draw.randint(*ground.prompt_tokens)
        if ground.model == EMBEDDED:
            start = draw.randrange(len(ground.ids) - length)
            ids = ground.ids[start : start + length]
        else:
            ids = draw.choices(ground.ids, k=length)
        yield {"id": f"p{number}", "prompt_ids": ids}


def soak(grounds: list[Ground], requests: int, directory: Path, console: Console, *, seed: int = 0) -> Tally:
    """Groups until `requests` are judged; the grounds take turns."""
    directory.mkdir(parents=True, exist_ok=True)
    tally, number = Tally(), 0
    while tally.requests < requests:
        config = group_config(number, grounds[number % len(grounds)], directory, seed=seed)
        result = check_run(execute(config, console=console))
        tally.add(result, config.name)
        cells = ", ".join(label(cell).removeprefix("vericache ") for cell in config.cells[1:])
        greedy = "greedy" if config.tasks[0].sampling.takes_best else "sampled"
        console.print(
            f"{tally.requests:4} {Path(config.model.id).name} batch {config.engine.batch_size} {greedy}: {cells}"
        )
        number += 1
    return tally


def fault_config(fault: str | None, ground: Ground, directory: Path) -> RunConfig:
    """The gate's own two methods on real text, with outputs that end where the fault can show."""
    prompts = directory / "faults.jsonl"
    rows = drawn_prompts(random.Random("faults"), ground)
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = tiny_config("faults") if fault is None else demo_run(fault)
    options = {**base.tasks[0].options, "path": str(prompts)}
    task = replace(base.tasks[0], max_tokens=ground.max_tokens, options=options)
    if fault in STOPPING:
        task = replace(task, max_tokens=8, stop=("e",))
    return replace(
        base,
        name="faults" if fault not in STOPPING else "faults-stopping",
        model=ModelConfig(id=ground.model, dtype="float32", device="cpu"),
        tasks=(task,),
        engine=EngineConfig(batch_size=PROMPTS),
        output_dir=str(directory),
    )


def faults_that_stay_green(ground: Ground, directory: Path, console: Console) -> list[str]:
    """Faults of which the gate does not say what it must; also a sound engine that does not pass."""
    directory.mkdir(parents=True, exist_ok=True)
    found = []
    for fault in (None, *FAULTS):
        path = run_for_gate(fault_config(fault, ground, directory), fault=fault, console=console)
        outcome, wanted = check_run(path).outcome, FAULTS[fault].outcome if fault else "PASS"
        console.print(f"{fault or 'no fault'}: {outcome}")
        if outcome != wanted:
            found.append(f"{fault or 'no fault'}: {outcome}, not {wanted}")
    return found


def main() -> int:
    """Exit code 0 only if nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, default=Path("runs/soak"))
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier soak left there")
    parser.add_argument("--no-reference", action="store_true", help="leave out the comparison with transformers")
    given = parser.parse_args()
    if given.fresh:
        shutil.rmtree(given.directory, ignore_errors=True)
    console = Console(stderr=True, highlight=False)
    # One group in four runs on the embedded model, which takes most of the time.
    grounds = [embedded_ground(), *(tiny_ground(seed) for seed in (3, 4, 5))]
    tally = soak(grounds, given.requests, given.directory, console, seed=given.seed)
    for problem in tally.problems:
        print(f"! {problem}")
    print(tally.summary())
    stayed_green = faults_that_stay_green(grounds[0], given.directory, console)
    for problem in stayed_green:
        print(f"! {problem}")
    runs = len(FAULTS) + 1
    print(f"{runs - len(stayed_green)} of {runs} runs with and without injected faults end as they must")
    agreed = True
    if not given.no_reference:
        from tests.lossless.independent import compare_with_transformers

        agreed = compare_with_transformers(console)
    return 0 if tally.passed and not stayed_green and agreed else 1


if __name__ == "__main__":
    sys.exit(main())
