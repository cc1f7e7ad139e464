"""chrF: F-score of character n-grams up to 6 (Popović, 2015), by sacrebleu, in [0, 1]; 1 of equal texts, also empty."""

import datasets
import evaluate
import sacrebleu


class Chrf(evaluate.Metric):  # type: ignore[misc]
    """`chrf`: one value in [0, 1] for each answer; `mean`: their mean."""

    def _info(self):  # type: ignore[no-untyped-def]
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description="predictions, references: texts",
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions, references):  # type: ignore[no-untyped-def]
        pairs = zip(predictions, references, strict=True)
        values = [
            1.0 if said == wanted else float(sacrebleu.sentence_chrf(said, [wanted]).score) / 100
            for said, wanted in pairs
        ]
        return {"chrf": values, "mean": sum(values) / len(values) if values else None}
