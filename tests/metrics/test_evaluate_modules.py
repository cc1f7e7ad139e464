"""The text metrics as modules of `evaluate`: loaded by path without a network, equal to the packages behind them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from vcbench.metrics import evaluate_modules
from vcbench.scoring.texts import MODULES, load_modules

DIRECTORY = Path(evaluate_modules.__file__).parent
TEXTS = [
    ("the cat sat on the mat", "the cat lay on a mat"),
    ("def f(x):\n    return x + 1", "def f(x):\n    return x + 2"),
    ("", "something"),
    ("same words", "same words"),
    ("über naïve Ōsaka", "uber naive Osaka"),
    (" ".join(f"w{i % 7}" for i in range(200)), " ".join(f"w{i % 5}" for i in range(180))),
]
SAID, WANTED = [a for a, _ in TEXTS], [b for _, b in TEXTS]


@pytest.fixture(scope="module")
def values() -> dict[str, list[float]]:
    modules = load_modules()
    assert modules is not None
    return {name: module.compute(predictions=SAID, references=WANTED)[name] for name, module in modules.items()}


def test_rouge_l_is_that_of_rouge_score(values: dict[str, list[float]]) -> None:
    from rouge_score import rouge_scorer

    scorer = rouge_scorer.RougeScorer(["rougeL"])
    expected = [scorer.score(wanted, said)["rougeL"].fmeasure for said, wanted in TEXTS]
    assert values["rouge_l"] == pytest.approx(expected)


def test_chrf_and_bleu_are_those_of_sacrebleu(values: dict[str, list[float]]) -> None:
    import sacrebleu

    for index, (said, wanted) in enumerate(TEXTS):
        assert values["chrf"][index] == pytest.approx(sacrebleu.sentence_chrf(said, [wanted]).score / 100)
        bleu = sacrebleu.sentence_bleu(said, [wanted], use_effective_order=True).score / 100
        assert values["bleu"][index] == pytest.approx(bleu)
    assert [values["chrf"][3], values["bleu"][3]] == pytest.approx([1.0, 1.0])


def test_equal_texts_are_perfect_and_no_words_are_no_value() -> None:
    """A lossless arm repeats whatever full KV says: nothing at all, or a script that `rouge-score` has no words for."""
    modules = load_modules()
    assert modules is not None
    equal = ["", "...", "你好，世界", "same words"]
    for name, module in modules.items():
        assert module.compute(predictions=equal, references=equal)[name] == [1.0] * len(equal), name
    found = modules["rouge_l"].compute(predictions=["你好", "你好", "a b"], references=["再见", "hello", "a c"])
    assert found == {"rouge_l": [None, 0.0, 0.5], "mean": 0.25}


@pytest.mark.parametrize("name", MODULES)
def test_one_import_a_line(name: str) -> None:
    """`evaluate.load` reads imports with a pattern that takes `import a, b` for one module."""
    tree = ast.parse((DIRECTORY / f"{name}.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert len(node.names) == 1


def test_modules_load_by_path_without_the_hub(tmp_path: Path) -> None:
    program = (
        "import sys\nsys.modules['transformers'] = None\nimport evaluate\ndel sys.modules['transformers']\n"
        "for name in sys.argv[2:]:\n"
        "    found = evaluate.load(f'{sys.argv[1]}/{name}.py').compute(predictions=['a b'], references=['a b'])\n"
        "    print(name, round(found['mean'], 6))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(DIRECTORY), *MODULES],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:3] == [f"{name} 1.0" for name in MODULES]
