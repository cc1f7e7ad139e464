"""What generation_config.json says of decoding is named or taken over, never dropped without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vcbench.config.sampling import Sampling
from vcbench.errors import ModelError
from vcbench.models.generation import DRAWN, GREEDY, SUPPORTED, Generation, parse_generation


def parsed(**settings: Any) -> Generation:
    return parse_generation(settings, {"eos_token_id": 2}, vocab_size=96)


def test_what_changes_greedy_decoding_is_said() -> None:
    found = parsed(repetition_penalty=1.05, no_repeat_ngram_size=3, temperature=0.7, top_k=20, do_sample=True)

    assert found.dropped == {"no_repeat_ngram_size": 3, "repetition_penalty": 1.05}
    assert found.notes(Sampling()) == [
        "generation_config.json: not applied, though transformers applies it to greedy decoding too: "
        "no_repeat_ngram_size 3, repetition_penalty 1.05; not supported here: no_repeat_ngram_size"
    ]
    assert parsed(repetition_penalty=1.05).notes(Sampling())[0].endswith("`sampling: model` takes over all of it")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "num_beams": 1, "suppress_tokens": []},
        {"repetition_penalty": 1, "bad_words_ids": None, "min_length": 0, "remove_invalid_values": False},
        {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "max_length": 4096, "pad_token_id": 0},
    ],
)
def test_what_changes_nothing_is_not_said(settings: dict[str, Any]) -> None:
    assert parsed(**settings).notes(Sampling()) == []


def test_what_the_task_applies_itself_is_not_said() -> None:
    assert parsed(repetition_penalty=1.05).notes(Sampling(repetition_penalty=1.05)) == []
    assert parsed(repetition_penalty=1.05).notes(Sampling(repetition_penalty=1.1))


@pytest.mark.parametrize(
    ("settings", "sampling"),
    [
        ({}, Sampling()),
        ({"temperature": 0.7, "top_k": 20}, Sampling()),
        ({"do_sample": False, "temperature": 0.7}, Sampling()),
        ({"repetition_penalty": 1.05, "min_new_tokens": 4}, Sampling(repetition_penalty=1.05, min_tokens=4)),
        ({"do_sample": True}, Sampling(temperature=1.0, top_k=50)),
        ({"do_sample": True, "top_k": 0, "temperature": 1}, Sampling(temperature=1.0, top_k=0)),
        (
            {
                "do_sample": True,
                "temperature": 0.7,
                "top_p": 0.8,
                "top_k": 20,
                "repetition_penalty": 1.05,
                "min_p": 0.1,
            },
            Sampling(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, min_p=0.1),
        ),
    ],
)
def test_sampling_of_the_model(settings: dict[str, Any], sampling: Sampling) -> None:
    assert parsed(**settings).sampling() == sampling


VALUES: dict[str, Any] = {
    "bad_words_ids": [[3]], "begin_suppress_tokens": [4], "constraints": [1], "dola_layers": "high",
    "encoder_no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.2, "exponential_decay_length_penalty": [5, 1.1],
    "force_words_ids": [[3]], "forced_bos_token_id": 1, "forced_decoder_ids": [[1, 2]], "forced_eos_token_id": 2,
    "guidance_scale": 1.5, "min_length": 10, "no_repeat_ngram_size": 3, "num_beams": 4, "penalty_alpha": 0.6,
    "remove_invalid_values": True, "sequence_bias": [[[3], -1.0]], "stop_strings": ["x"], "suppress_tokens": [3],
    "token_healing": True, "watermarking_config": {"bias": 2.0}, "typical_p": 0.9, "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1, "top_h": 0.4,
}  # fmt: skip


def test_every_setting_is_supported_or_has_a_case_here() -> None:
    assert {*GREEDY, *DRAWN} == {*SUPPORTED, *VALUES}


@pytest.mark.parametrize("key", VALUES)
def test_what_is_not_supported_is_refused_by_name(key: str) -> None:
    found = parsed(do_sample=True, **{key: VALUES[key]})

    with pytest.raises(ModelError, match=f"sampling: model cannot take over {key} ") as caught:
        found.sampling()
    assert "\n" not in str(caught.value)
    assert bool(found.notes(Sampling())) == (key in GREEDY)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("repetition_penalty", "high", "repetition_penalty is 'high'; expected a number and at least 0.01"),
        ("repetition_penalty", float("inf"), "repetition_penalty is inf"),
        ("temperature", float("nan"), "temperature is nan"),
        ("temperature", float("inf"), "temperature is inf"),
        ("temperature", -1, "temperature is -1"),
        ("top_p", 1.5, "top_p is 1.5; expected a number and above 0 and at most 1"),
        ("top_k", 2.5, "top_k is 2.5; expected a whole number"),
        ("top_k", True, "top_k is True"),
        ("min_new_tokens", [3], "min_new_tokens is"),
    ],
)
def test_values_have_bounds(key: str, value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=f"generation_config.json: {message}"):
        parsed(do_sample=True, **{key: value}).sampling()


def test_transformers_knows_the_same_settings() -> None:
    """Nothing that it would apply to our answers is missing in our tables."""
    transformers = pytest.importorskip("transformers")
    harmless = {
        "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight", "assistant_lookbehind",
        "bos_token_id", "cache_config", "cache_implementation", "compile_config", "continuous_batching_config",
        "decoder_start_token_id", "disable_compile", "diversity_penalty", "do_sample", "early_stopping",
        "eos_token_id", "is_assistant", "length_penalty", "low_memory", "max_cache_len", "max_length",
        "max_matching_ngram_size", "max_new_tokens", "max_time", "num_assistant_tokens",
        "num_assistant_tokens_schedule", "num_beam_groups", "num_return_sequences", "output_attentions",
        "output_hidden_states", "output_logits", "output_scores", "pad_token_id", "prefill_chunk_size",
        "prompt_lookup_num_tokens", "renormalize_logits", "return_dict_in_generate", "speculation_type",
        "target_lookbehind", "transformers_version", "use_cache", "use_mtp", "_from_model_config",
    }  # fmt: skip

    assert set(transformers.GenerationConfig().to_dict()) - harmless <= {*GREEDY, *DRAWN}


@pytest.mark.parametrize("name", ["repetition_penalty"])
def test_taken_over_it_is_what_transformers_generates(tmp_path: Path, name: str) -> None:
    """Greedy decoding with the model's penalty: the same ids as `generate` gives of its own accord."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from vcbench.config.schema import ModelConfig
    from vcbench.engine.decoding.session import CellSetup, Prefilled, run_cell
    from vcbench.engine.types import Request
    from vcbench.models.store import resolve_model
    from vcbench.runners.plan import Identity
    from vcbench.runners.setup import load

    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, max_position_embeddings=256, eos_token_id=None, **shape
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config = transformers.GenerationConfig(eos_token_id=5, **{name: 1.5})
    model.save_pretrained(tmp_path)
    prompt = list(range(6, 40))
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=40)[0, len(prompt) :].tolist()
    files = resolve_model(ModelConfig(id=str(tmp_path)))
    assert files.stop_ids == {5}
    identity = Identity(device="cpu", dtype="float32", code_sha256="", kernels={})
    decoder, _ = load(files, identity, "bitwise")

    def ours(sampling: Sampling) -> list[int]:
        request = Request(id="r", prompt_ids=tuple(prompt), max_tokens=40, stop_ids=files.stop_ids, sampling=sampling)
        ended: list[Any] = []
        prefilled = Prefilled(request, decoder.prefill(request.prompt_ids, chunk=64))
        run_cell(decoder, CellSetup(arm="full"), [prefilled], on_end=ended.append)
        return list(ended[0].token_ids)

    assert ours(files.generation.sampling()) == theirs
    assert ours(Sampling()) != theirs
