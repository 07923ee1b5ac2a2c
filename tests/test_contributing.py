"""CONTRIBUTING.md: its examples run as they are written and give the right numbers, and it names what exists."""

import inspect
import re
from pathlib import Path

import pytest
import torch

from examples import singular_value
from lightning_hooks import assert_no_hooks

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def blocks(title, language="python"):
    """The blocks of a language in one section."""
    (section,) = [each for each in re.split(r"^## ", TEXT, flags=re.MULTILINE) if each.startswith(f"{title}\n")]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def executed(title):
    """The names that the blocks of a section define, which run one after the other."""
    names = {"__name__": __name__}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in blocks(title):
            exec(compile(block, f"CONTRIBUTING.md: {title}", "exec"), names)
    return names


def test_every_block_of_python_belongs_to_an_example_that_is_run():
    titles = ["an accumulator with a statistic", "a transform", "a reader of tensors"]
    assert [len(blocks(f"Example: {title}")) for title in titles] == [1, 2, 1]
    assert TEXT.count("```python\n") == 4


def test_the_accumulator_is_that_of_the_example_and_exact_over_micro_batches():
    title = "Example: an accumulator with a statistic"
    assert inspect.getsource(singular_value.LargestSingularValue) in blocks(title)[0]
    names = executed(title)
    with torch.no_grad():
        outputs = torch.cat([names["model"](micro_batch) for micro_batch in names["micro_batches"]]).double()
    assert names["found"] == pytest.approx(torch.linalg.matrix_norm(outputs, 2).item(), rel=1e-6)
    assert_no_hooks(names["model"])


# pytest collects the tests that the document shows by these names.
TRANSFORM = executed("Example: a transform")
test_elements_move_towards_zero_by_the_threshold = TRANSFORM["test_elements_move_towards_zero_by_the_threshold"]
test_a_negative_threshold_is_refused = TRANSFORM["test_a_negative_threshold_is_refused"]
test_the_optimizer_gets_the_changed_gradient = TRANSFORM["test_the_optimizer_gets_the_changed_gradient"]


def test_every_test_of_the_transform_is_run():
    assert {name for name in TRANSFORM if name.startswith("test_")} < set(globals())


def test_the_reader_notes_the_outputs_in_the_order_in_which_modules_finish():
    names = executed("Example: a reader of tensors")
    linear = names["model"][0](torch.tensor([[1.0, -2.0]])).abs().max().item()
    output = names["output"].max().item()
    assert names["notes"] == [("0", linear), ("1.0", output), ("1", output)]
    assert_no_hooks(names["model"])


def test_the_table_has_every_room():
    rooms = re.findall(r"^\| `(\w+)/` \|", TEXT, re.MULTILINE)
    assert sorted(rooms) == sorted(path.parent.name for path in ROOT.glob("lightning_hooks/*/__init__.py"))


def test_the_files_and_the_targets_that_it_names_exist():
    paths = set(re.findall(r"(?<![\w/.])(?:lightning_hooks|tests|examples|docs|\.ci)/[\w./]*\w", TEXT))
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(re.findall(r"`?make (\w+)", TEXT)) == set(phony.split())
