"""ROUGE-L: F1 of the longest common subsequence of words (Lin, 2004), words as `rouge-score` makes them.

These are runs of `a-z0-9`. Where neither text has any (both empty, or in another script) `rouge-score` gives 0 even for
equal texts; here equal texts are 1, and others have no value.
"""

import datasets
import evaluate
from rouge_score import tokenizers


class RougeL(evaluate.Metric):  # type: ignore[misc]
    """`rouge_l`: for each answer a value in [0, 1], or None; `mean`: that of the values."""

    def _info(self):  # type: ignore[no-untyped-def]
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description="predictions, references: texts",
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions, references):  # type: ignore[no-untyped-def]
        # rouge-score's own table is quadratic in Python; the same length comes from bits in a thousandth of the time.
        from vcbench.metrics.alignment import common_subsequence

        tokenizer = tokenizers.DefaultTokenizer(use_stemmer=False)
        values: list[float | None] = []
        for prediction, reference in zip(predictions, references, strict=True):
            said, wanted = tokenizer.tokenize(prediction), tokenizer.tokenize(reference)
            if said or wanted:
                values.append(2 * common_subsequence(said, wanted) / (len(said) + len(wanted)))
            else:
                values.append(1.0 if prediction == reference else None)
        known = [value for value in values if value is not None]
        return {"rouge_l": values, "mean": sum(known) / len(known) if known else None}
