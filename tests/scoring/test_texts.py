"""Metrics that any task has, over a whole run; what is missing is said, and what fails costs no other answer."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.records.samples import FULL, LOSSY, OUTPUT, VERI, Sample, divergence
from vcbench.records.reader import Run, load_run
from vcbench.scoring import texts
from vcbench.scoring.answers import answer
from vcbench.scoring.curves import curves_of
from vcbench.scoring.texts import MODULES, AgreementSource, DivergenceSource, OutputSource
from vcbench.scoring.values import Failure

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    sample = Sample()
    sample.others.append(
        divergence(VERI, "one", kl=[0.0] * 9, top1_agree=[True] * 9, top5_overlap=[5] * 9, basis="same logits")
    )
    return load_run(sample.write(tmp_path / "run"))


def cell(run: Run, arm: str) -> Any:
    return next(cell for cell in run.cells if cell.arm == arm)


def test_agreement_by_hand(run: Run) -> None:
    found = AgreementSource().outcomes(run, cell(run, "lossy"), "stdlib")
    assert found["exact"] == dict.fromkeys(("one", "two", "three", "four"), False)
    assert found["prefix"]["one"] == 0.6
    assert found["edit_similarity"]["one"] == pytest.approx(0.6)
    assert found["token_f1"]["one"] == pytest.approx(0.6)
    same = AgreementSource().outcomes(run, cell(run, "vericache"), "stdlib")
    for name in ("token_f1", "prefix", "edit_similarity", "rouge_l", "chrf", "bleu"):
        assert same[name]["one"] == pytest.approx(1.0), name
    assert AgreementSource().outcomes(run, cell(run, "full"), "stdlib")["exact"] == {}


def test_outputs_by_hand(tmp_path: Path) -> None:
    sample = Sample(cells=[FULL]).change(FULL, "one", token_ids=[1, 2, 3, 1, 2, 3, 1, 2], finish_reason="stop")
    sample.others = []
    found = OutputSource().outcomes(
        load_run(sample.write(tmp_path / "run")), cell(load_run(tmp_path / "run"), "full"), "stdlib"
    )
    one = {name: values["one"] for name, values in found.items()}
    assert one["tokens"] == 8.0
    assert one["hit_max_tokens"] is False
    assert one["distinct_1"] == 3 / 8
    assert one["rep_4"] == pytest.approx(1 - 3 / 5)
    assert one["longest_repeat"] == 5.0
    assert found["hit_max_tokens"]["two"] is True
    assert found["thinking_tokens"]["two"] is None, "records that do not say"
    assert found["unended_thought"]["one"] is False


def test_thoughts_are_a_figure_and_no_answer(tmp_path: Path) -> None:
    """The prompt's record shows that the template opened a thought."""
    sample = Sample(cells=[FULL]).change(FULL, "one", text="it is 5 or", thinking_tokens=4)
    sample.change(FULL, "two", text="it is 5</think>7", thinking_tokens=5).others = []
    sample.prompts = [replace(line, tail="assistant\n<think>\n") for line in sample.prompts]
    run = load_run(sample.write(tmp_path / "run"))
    found = OutputSource().outcomes(run, cell(run, "full"), "stdlib")
    given = {line.request: answer(run, line) for line in run.requests_of(cell(run, "full"), "stdlib")}

    assert (found["thinking_tokens"]["one"], found["thinking_tokens"]["two"]) == (4.0, 5.0)
    assert (found["unended_thought"]["one"], found["unended_thought"]["two"]) == (True, False)
    assert (given["one"].text, given["two"].text) == ("", "7")


def test_divergence_of_each_request(run: Run) -> None:
    found = DivergenceSource().outcomes(run, cell(run, "lossy"), "stdlib")
    assert found["kl_sum"]["one"] == pytest.approx(1.0)
    assert found["top1_agreement"]["one"] == texts.Ratio(9.0, 10.0)
    assert DivergenceSource().outcomes(run, cell(run, "vericache"), "stdlib")["kl_sum"] == {"one": 0.0}


def test_curves_of_a_measured_zero_and_of_a_lossy_cell(run: Run) -> None:
    veri = curves_of(run, cell(run, "vericache"), "stdlib")
    assert veri.distribution is not None
    assert veri.distribution.basis == {"same logits": 1}
    assert veri.distribution.delta_p_rms is not None
    assert veri.distribution.delta_p_rms.value == 0.0
    assert veri.distribution.ppl_ratio is not None
    assert veri.distribution.ppl_ratio.value == 1.0
    assert veri.growth is not None
    assert veri.growth.value[-1] == 0.0
    assert veri.survival is not None
    assert veri.survival.value[-1] == 1.0
    lossy = curves_of(run, cell(run, "lossy"), "stdlib")
    assert lossy.distribution is not None
    assert lossy.distribution.percentiles[-1] == pytest.approx(0.3)
    # Records of schema 1 hold no log-probabilities.
    assert lossy.distribution.delta_p_rms is None
    assert lossy.survival is not None
    assert lossy.survival.value[len(OUTPUT[:6])] == 0.0
    full = curves_of(run, cell(run, "full"), "stdlib")
    assert (full.distribution, full.growth, full.survival) == (None, None, None)


def test_log_probabilities_by_hand(tmp_path: Path) -> None:
    sample = Sample(names=("one",))
    sample.others = [
        divergence(
            LOSSY, "one", kl=[0.1, 0.2], top1_agree=[True, True], top5_overlap=[5, 3],
            logprob_full=[-0.5, -1.0], logprob_method=[-1.0, None],
        )
    ]  # fmt: skip
    run = load_run(sample.write(tmp_path / "run"))
    found = curves_of(run, cell(run, "lossy"), "stdlib").distribution
    assert found is not None
    assert found.top5_overlap is not None
    assert found.top5_overlap.value == pytest.approx(0.8)
    assert found.delta_p_mean is not None
    assert found.delta_p_mean.value == pytest.approx(-0.2386512, abs=1e-6)
    assert found.delta_p_rms is not None
    assert found.delta_p_rms.value == pytest.approx(0.2386512, abs=1e-6)
    assert found.ppl_ratio is not None
    assert found.ppl_ratio.value == pytest.approx(1.6487213, abs=1e-6)


def test_without_the_extra_the_text_metrics_are_named_not_dropped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "load_modules", lambda: None)
    source = AgreementSource()
    assert source.missing == "rouge_l, chrf, bleu: n/a (pip install 'vcbench[tasks]')"
    assert set(source.outcomes(run, cell(run, "lossy"), "stdlib")) == {
        "exact", "token_f1", "prefix", "edit_similarity", "length_ratio",
    }  # fmt: skip


def test_a_module_that_fails_on_one_answer_keeps_the_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Picky:
        def compute(self, predictions: list[str], references: list[str]) -> dict[str, list[float]]:
            if any(text.startswith("bad") for text in predictions):
                raise ValueError("no such word")
            return dict.fromkeys(MODULES, [0.5] * len(predictions))

    monkeypatch.setattr(texts, "load_modules", lambda: dict.fromkeys(MODULES, Picky()))
    for key, line in run.requests.items():
        if key[0] == LOSSY["id"] and key[2] == "two":
            object.__setattr__(line, "text", "bad")
    found = AgreementSource().outcomes(run, cell(run, "lossy"), "stdlib")["rouge_l"]
    assert found == {"one": 0.5, "two": Failure("ValueError: no such word"), "three": 0.5, "four": 0.5}
    assert AgreementSource().outcomes(run, cell(run, "lossy"), "stdlib")["exact"]["two"] is False


def test_loading_them_imports_no_torch_and_a_missing_package_is_a_missing_metric() -> None:
    program = (
        "import sys\nfrom vcbench.scoring.texts import AgreementSource, load_modules\nassert load_modules()\n"
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))\n"
        "del sys.modules['vcbench.metrics.evaluate_modules.chrf']\nsys.modules['sacrebleu'] = None\n"
        "print(AgreementSource().missing)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "rouge_l, chrf, bleu: n/a (pip install 'vcbench[tasks]')"]
