"""`sampling` of a task: every setting's range, what is refused by name, and that nothing is dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest

from tests.config.conftest import GOOD
from tests.config.test_load import TINY
from vcbench.config.load import dump_config
from vcbench.config.sampling import Sampling
from vcbench.config.schema import RunConfig
from vcbench.errors import ConfigError

Load = Callable[..., RunConfig]
Problems = Callable[..., list[str]]


def sampling(text: str) -> str:
    """A configuration whose task samples so; the text is on line 8."""
    return GOOD.replace("    max_tokens: 16", f"    max_tokens: 16\n    sampling: {{{text}}}")


def test_greedy_unless_asked(load: Load) -> None:
    assert load(GOOD).tasks[0].sampling == Sampling()
    assert load(sampling("")).tasks[0].sampling.takes_best


def test_every_setting_is_read_and_written(load: Load) -> None:
    text = "temperature: 0.7, top_k: 40, top_p: 0.9, min_p: 0.05, repetition_penalty: 1.1, presence_penalty: 0.5, "
    text += "frequency_penalty: -0.5, logit_bias: {'3': -100, \"0\": 1.5}, min_tokens: 16, seed: 9"
    config = load(sampling(text))
    found = config.tasks[0].sampling
    assert found == Sampling(
        temperature=0.7,
        top_k=40,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={3: -100.0, 0: 1.5},
        min_tokens=16,
        seed=9,
    )
    names = {spec.name for spec in fields(Sampling)} - {"model"}
    assert all(getattr(found, name) != getattr(Sampling(), name) for name in names)
    assert load(dump_config(config)) == config


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("model", Sampling(model=True)), ("{model: true}", Sampling(model=True)),
     ("{model: true, seed: 4}", Sampling(model=True, seed=4)), ("{model: false, top_k: 3}", Sampling(top_k=3))],
)  # fmt: skip
def test_sampling_of_the_model(load: Load, text: str, wanted: Sampling) -> None:
    config = load(sampling("temperature: 0").replace("{temperature: 0}", text))

    assert config.tasks[0].sampling == wanted
    assert load(dump_config(config)) == config


def test_nothing_may_stand_beside_sampling_of_the_model(load: Load) -> None:
    with pytest.raises(ConfigError, match="`top_k` stands beside `model: true`, which gives it"):
        load(sampling("model: true, top_k: 3"))
    with pytest.raises(ConfigError, match="`sampling`"):
        load(sampling("temperature: 0").replace("{temperature: 0}", "modle"))


def test_one_setting_from_the_command_line(load: Load) -> None:
    config = load(GOOD, "tasks.0.sampling.temperature=1", "tasks.0.sampling.logit_bias.5=-2")
    assert config.tasks[0].sampling == Sampling(temperature=1.0, logit_bias={5: -2.0})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("temperature: -1", "`temperature` must be at least 0, not -1.0"),
        ("temperature: .nan", "`temperature` must be finite, not nan"),
        ("temperature: hot", "`temperature` must be a number, not the text 'hot'"),
        ("top_k: -1", "`top_k` must be at least 0, not -1"),
        ("top_k: 3.5", "`top_k` must be a whole number, not 3.5"),
        ("top_p: 0", "`top_p` must be above 0 and at most 1, not 0.0"),
        ("top_p: 1.5", "`top_p` must be above 0 and at most 1, not 1.5"),
        ("min_p: -0.1", "`min_p` must be at least 0 and at most 1, not -0.1"),
        ("repetition_penalty: 0", "`repetition_penalty` must be at least 0.01 and at most 100, not 0.0"),
        ("presence_penalty: 3", "`presence_penalty` must be at least -2 and at most 2, not 3.0"),
        ("frequency_penalty: -3", "`frequency_penalty` must be at least -2 and at most 2, not -3.0"),
        ("logit_bias: {'3': 101}", "`logit_bias` must be at least -100 and at most 100, not {3: 101.0}"),
        ("logit_bias: {'3': x}", "`logit_bias` of 3 must be a number, not the text 'x'"),
        ("logit_bias: {the: 1}", "`logit_bias` has the key 'the', which is no token id"),
        ("logit_bias: {'-3': 1}", "`logit_bias` has the key '-3', which is no token id"),
        ("logit_bias: {'03': 1}", "`logit_bias` has the key '03', which is no token id"),
        ("logit_bias: {3: 1}", "keys are text, not '3' (put the key in quotes)"),
        ("logit_bias: [3]", "`logit_bias` must be a mapping of token ids, not a list"),
        ("min_tokens: 17", "min_tokens 17 is above max_tokens 16 (lower it)"),
        ("seed: -1", "`seed` must be at least 0, not -1"),
        ("temprature: 1", "unknown key `temprature` in `sampling` (did you mean 'temperature'?)"),
        ("typical_p: 0.9", "`typical_p` in `sampling` is not supported, and nothing is ignored (remove it)"),
        ("num_beams: 4", "`num_beams` in `sampling` is not supported, and nothing is ignored (remove it)"),
        ("options: {}", "unknown key `options` in `sampling`"),
    ],
)
def test_one_mistake_is_one_problem_with_its_line(problems: Problems, text: str, expected: str) -> None:
    found = problems(sampling(text))
    assert len(found) == 1
    assert found[0].startswith(f"run.yaml:8: {expected}")


def test_all_mistakes_come_at_once_also_for_a_known_model(problems: Problems) -> None:
    found = problems(sampling("top_p: 2, min_p: 2, n: 3"), architecture_of=lambda _: TINY)
    assert [line.split("`")[1] for line in found[:3]] == ["top_p", "min_p", "n"]


def test_a_bias_outside_the_vocabulary(problems: Problems) -> None:
    found = problems(sampling("logit_bias: {'64': 1.0}"), architecture_of=lambda _: TINY)
    expected = "run.yaml:8: logit_bias names token 64; the model's vocabulary has 64 (remove it)"
    assert expected in found


def test_supported_settings_are_not_refused() -> None:
    assert not {spec.name for spec in fields(Sampling)} & Sampling.UNSUPPORTED
