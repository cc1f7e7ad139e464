"""Documents cut in the middle: within the budget, whole lines, both ends and the prompt's tail intact."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.words import WordTokenizer
from vcbench.tasks.budget import SLACK_TOKENS, Fitted, fit, too_long


class Renderer:
    """A chat prompt around a document, which counts how often it is asked."""

    def __init__(self) -> None:
        self.tokenizer = WordTokenizer()
        self.calls = 0

    def __call__(self, document: str) -> list[int]:
        self.calls += 1
        return self.tokenizer.chat([{"role": "user", "content": f"Read this.\n{document}\nFix it."}])


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=80),
    st.integers(0, 700),
    st.sets(st.integers(0, 79), max_size=4),
)
def test_fits_and_keeps_both_ends(lengths: list[int], limit: int, headings: set[int]) -> None:
    lines = [
        f"{'head' if number in headings else 'body'} {number}{' x' * count}\n" for number, count in enumerate(lengths)
    ]
    render = Renderer()

    def is_heading(line: str) -> bool:
        return line.startswith("head")

    fitted = fit("".join(lines), render, limit, keep=is_heading)
    if isinstance(fitted, int):
        assert fitted > limit, "what is said of it must be so"
        least = "".join(line for line in lines if is_heading(line))
        assert len(render(least)) + 10 * (len(headings) + 1) > limit
        return
    assert len(fitted.ids) <= limit
    text = render.tokenizer.decode(fitted.ids)
    assert text.endswith("\nFix it.<answer>")
    assert list(fitted.ids) == render(fitted.document)
    shown = [line for line in fitted.document.splitlines(keepends=True) if "left out" not in line]
    assert len(shown) == fitted.kept_lines
    assert [line for line in lines if line in shown] == shown, "in order, nothing altered"
    assert [line for line in shown if is_heading(line)] == [line for line in lines if is_heading(line)]
    left_out = sum(int(line[1:].split()[0]) for line in fitted.document.splitlines() if "left out" in line)
    assert left_out + fitted.kept_lines == fitted.lines == len(lines)
    plain = [line for line in shown if not is_heading(line)]
    if left_out and len(plain) >= 2 and not headings:
        assert shown[0] == lines[0]
        assert shown[-1] == lines[-1]


def test_few_calls_and_little_waste() -> None:
    render = Renderer()
    document = "".join(f"line {number} of a long document\n" for number in range(5000))
    fitted = fit(document, render, 8000)
    assert isinstance(fitted, Fitted)
    assert 8000 - SLACK_TOKENS - 12 <= len(fitted.ids) <= 8000
    assert render.calls <= 8


def test_uneven_lines_take_few_calls_too() -> None:
    render = Renderer()
    document = "".join("word " * (200 if number % 97 == 0 else number % 7) + "\n" for number in range(3000))
    fitted = fit(document, render, 9000)
    assert isinstance(fitted, Fitted)
    assert len(fitted.ids) >= 8000
    assert render.calls <= 20


def test_a_document_that_fits_is_whole() -> None:
    render = Renderer()
    assert fit("a\nb", render, None) == Fitted(tuple(render("a\nb")), "a\nb", 2, 2)
    exactly = len(render("a\nb"))
    assert fit("a\nb", render, exactly) == fit("a\nb", render, None)


def test_nothing_fits() -> None:
    render = Renderer()
    assert fit("a\nb\n", render, 5) == len(render("[2 lines left out]\n"))
    assert fit("# a\nb\n", render, 15, keep=lambda line: line.startswith("#")) == len(
        render("# a\n[1 lines left out]\n")
    )
    assert "12 tokens" in too_long("x", 12, 5).reason
    assert "limit of 5" in too_long("x", 12, 5).reason
