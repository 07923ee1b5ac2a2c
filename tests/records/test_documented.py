import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "consumers.md"


def test_the_example_of_the_page_runs():
    # Remove the fences: doctest would read a closing fence as a part of the output.
    text = PAGE.read_text(encoding="utf-8").replace("```python", "").replace("```", "")
    example = doctest.DocTestParser().get_doctest(text, {}, "consumers.md", str(PAGE), 0)
    assert len(example.examples) >= 6
    assert doctest.DocTestRunner(verbose=False).run(example).failed == 0
