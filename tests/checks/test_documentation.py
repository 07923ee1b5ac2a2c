import contextlib
import io
import re
from pathlib import Path

from lightning_hooks.checks.catalogue import DEFAULT_CHECKS

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")


def test_every_check_has_a_row_that_leads_to_its_fault():
    rows = re.findall(r"^\| \[`(\w+)`\]\(faults\.md#(\w+)\) \| .* \| .* \|$", PAGE, re.MULTILINE)
    assert rows == [(each.name, each.name.lower()) for each in DEFAULT_CHECKS]


def test_the_output_of_the_first_example_is_a_real_one():
    code, shown = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL).groups()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(code, {})
    numbers = r"\d\.\d+"
    assert re.sub(numbers, "#", said.getvalue()) == re.sub(numbers, "#", shown)
