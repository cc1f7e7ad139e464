"""BLEU of each answer against full KV's (Papineni and others, 2002), by sacrebleu with effective order, in [0, 1].

Equal texts are 1, also empty ones, to which sacrebleu gives 0.
"""

import datasets
import evaluate
import sacrebleu


class Bleu(evaluate.Metric):  # type: ignore[misc]
    """`bleu`: one value in [0, 1] for each answer; `mean`: their mean."""

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
            1.0
            if said == wanted
            else float(sacrebleu.sentence_bleu(said, [wanted], use_effective_order=True).score) / 100
            for said, wanted in pairs
        ]
        return {"bleu": values, "mean": sum(values) / len(values) if values else None}
