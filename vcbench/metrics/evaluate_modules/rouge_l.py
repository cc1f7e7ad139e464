"""ROUGE-L: F1 of the longest common subsequence of words (Lin, 2004), words as `rouge-score` makes them."""

import datasets
import evaluate
from rouge_score import tokenizers


class RougeL(evaluate.Metric):  # type: ignore[misc]
    """`rouge_l`: one value in [0, 1] for each answer; `mean`: their mean."""

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
        values = []
        for prediction, reference in zip(predictions, references, strict=True):
            said, wanted = tokenizer.tokenize(prediction), tokenizer.tokenize(reference)
            both = len(said) + len(wanted)
            values.append(2 * common_subsequence(said, wanted) / both if said and wanted else 0.0)
        return {"rouge_l": values, "mean": sum(values) / len(values) if values else None}
