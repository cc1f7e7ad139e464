"""The lossless gate, its guards and thresholds."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="the stop check misses one token after a stop id",
        file="vcbench/lossless/verdicts.py",
        before="answer.token_ids[:-1]",
        after="answer.token_ids[:-2]",
        tests=(
            "tests/lossless/test_check.py",
            "tests/lossless/test_outputs.py",
            "tests/lossless/test_reported_faults.py::test_a_stop_in_the_middle_of_a_draft",
        ),
    ),
    Mutation(
        name="two runs are compared without their sources' problems",
        file="vcbench/lossless/pairs.py",
        before="problems = list(dict.fromkeys(problem for arm in both for problem in arm.problems))",
        after="problems: list[str] = []",
        tests=("tests/lossless/test_outputs.py::test_damaged_sources_of_two_runs_never_pass",),
    ),
    Mutation(
        name="a baseline judges by the wrong direction",
        file="vcbench/metrics/interval.py",
        before='{"higher": 1.0, "lower": -1.0, "neither": 0.0}',
        after='{"higher": 1.0, "lower": 1.0, "neither": 0.0}',
        tests=("tests/lossless/test_thresholds.py::test_a_baseline_judges_less_kl_as_better",),
    ),
    Mutation(
        name="logits that differ behind equal tokens pass",
        file="vcbench/lossless/verdicts.py",
        before="if bitwise and len(hashes) > 1:",
        after="if bitwise and len(hashes) > 2:",
        tests=("tests/lossless/test_check.py::test_logits_are_compared_where_both_were_hashed",),
    ),
    Mutation(
        name="other prompts are compared",
        file="vcbench/lossless/verdicts.py",
        before="if not prompt_sha256(full.prompt_ids) == prompt_sha256(line.prompt_ids) == full.prompt_sha256 == line.prompt_sha256:",
        after="if False:",
        tests=("tests/lossless/test_check.py::test_another_prompt_is_not_comparable",),
    ),
    Mutation(
        name="ends by different reasons are equal",
        file="vcbench/lossless/verdicts.py",
        before="if fork is None and full.finish_reason != line.finish_reason:",
        after="if False:",
        tests=("tests/lossless/test_check.py::test_one_wrong_answer_fails_the_run",),
    ),
    Mutation(
        name="what follows a tie is not judged",
        file="vcbench/lossless/verdicts.py",
        before="if len(full.token_ids) == len(line.token_ids) == fork + 1:",
        after="if True:",
        tests=("tests/lossless/test_outputs.py::test_an_exact_tie_passes_only_where_nothing_follows",),
    ),
    Mutation(
        name="arms that contradict themselves alike are equal",
        file="vcbench/lossless/verdicts.py",
        before="if detail := contradiction(arm, answer):",
        after="if (detail := contradiction(arm, answer)) and full != line:",
        tests=("tests/lossless/test_outputs.py::test_arms_that_contradict_themselves_alike_are_missing",),
    ),
    Mutation(
        name="equal constant hashes are evidence",
        file="vcbench/lossless/guards.py",
        before="if prompts.setdefault(line.logits_sha256, line.prompt_sha256) != line.prompt_sha256:",
        after="if False:",
        tests=("tests/lossless/test_check.py::test_hashes_that_are_no_evidence",),
    ),
    Mutation(
        name="a full cache may stand in for a method's",
        file="vcbench/lossless/guards.py",
        before="if FULL_CACHE in seen and cell.compressor != UNCOMPRESSED:",
        after="if False:",
        tests=(
            "tests/lossless/test_check.py::test_equal_outputs_that_show_nothing",
            "tests/lossless/test_check.py::test_the_cache_class_is_the_compressors_own",
        ),
    ),
    Mutation(
        name="never rejecting is evidence",
        file="vcbench/lossless/guards.py",
        before="passed=rejected > 0, detail",
        after="passed=True, detail",
        tests=("tests/lossless/test_check.py::test_never_rejected_shows_nothing_about_rolling_back",),
    ),
    Mutation(
        name="a cache as large as full KV's is smaller",
        file="vcbench/lossless/guards.py",
        before="passed=found.stored_bytes < found.full_bytes",
        after="passed=True",
        tests=("tests/lossless/test_check.py::test_equal_outputs_that_show_nothing",),
    ),
    Mutation(
        name="a disk tier that stayed in its buffers passes",
        file="vcbench/lossless/guards.py",
        before="passed=not never, detail",
        after="passed=True, detail",
        tests=(
            "tests/lossless/test_check.py::test_a_full_cache_that_never_left_its_buffers_shows_nothing_of_the_disk",
        ),
    ),
    Mutation(
        name="an interval across a threshold passes",
        file="vcbench/lossless/thresholds.py",
        before='"inconclusive" if len(crossed) > 1 else',
        after='"pass" if len(crossed) > 1 else',
        tests=("tests/lossless/test_thresholds.py::test_an_interval_across_the_threshold_is_inconclusive",),
    ),
    Mutation(
        name="a metric that no cell has passes",
        file="vcbench/lossless/thresholds.py",
        before='cell="", outcome="inconclusive"',
        after='cell="", outcome="pass"',
        tests=("tests/lossless/test_thresholds.py::test_a_metric_that_no_cell_has_is_inconclusive",),
    ),
    Mutation(
        name="a run is its own baseline",
        file="vcbench/lossless/baseline.py",
        before="if run.path.resolve() == baseline.path.resolve():",
        after="if False:",
        tests=("tests/lossless/test_thresholds.py::test_a_run_is_no_baseline_of_itself",),
    ),
    Mutation(
        name="a baseline is paired with other prompts",
        file="vcbench/lossless/baseline.py",
        before="theirs is not None and ours.prompt_sha256 == theirs.prompt_sha256",
        after="theirs is not None",
        tests=("tests/lossless/test_thresholds.py::test_only_the_same_prompts_are_paired",),
    ),
)
