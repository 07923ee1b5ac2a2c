"""The blocks of a page run in their order, and a page that shows something else fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages.page import blocks, with_texts
from tests.pages.player import Failed, check, command, is_shown

PAGE = """```python
# script.py
print("loss", 0.51)
print("end")
```

```bash
python script.py
```

```text
loss 0.50
...
```
"""


def test_a_script_is_saved_and_run_by_its_command(folder: Path) -> None:
    check(PAGE)
    assert Path("script.py").read_text().startswith("# script.py\nprint(")


@pytest.mark.parametrize(("shown", "printed"), [("loss 0.50", "loss 0.7"), ("print(", "write("), ("loss 0.50", "lost 0.50")])
def test_a_page_that_shows_something_else_fails(shown: str, printed: str, folder: Path) -> None:
    page = PAGE.replace('"loss", 0.51', '"loss", 0.7') if printed == "loss 0.7" else PAGE.replace("loss 0.50", "lost 0.50")
    with pytest.raises(Failed, match="the page shows\n.*\n(.*\n)*and its block printed\nloss 0"):
        check(page)


def test_a_script_that_fails_and_a_command_that_is_refused_fail(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        check("```python\n1 / 0\n```\n")
    with pytest.raises(Failed, match="lightning-hooks doctor --no-such-option: exit code 2"):
        command("lightning-hooks doctor --no-such-option")


def test_commands_of_others_do_not_run(folder: Path) -> None:
    assert command("pip install '.[lightning]'  # a comment") is None
    assert command("lightning-hooks --version > version.txt") == 0
    assert Path("version.txt").read_text().startswith("lightning-hooks ")


def test_numbers_may_differ_by_a_tenth_and_words_may_not() -> None:
    assert is_shown("at step 100 of 1,000", "at step 105 of 990\n")
    assert not is_shown("at step 100", "at step 115")
    assert not is_shown("at step 100", "at Step 100")
    assert is_shown("a\n...\nb 1\n...\n", "a\nx\ny\nb 1\nz\n") and not is_shown("a\nb", "a\nx\nb")


def test_the_text_of_a_block_is_replaced() -> None:
    (_, _, shown) = blocks(PAGE)
    assert with_texts(PAGE, [(shown, "new\n")]) == PAGE.replace("loss 0.50\n...\n", "new\n")
