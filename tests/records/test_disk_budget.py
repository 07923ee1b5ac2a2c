"""A budget on disk: its option, and how many steps a view on disk merges as it is used up."""

import pytest

from lightning_hooks import RuleError
from lightning_hooks.records.disk_budget import DISK, FREE, DiskBudget, DiskState, bytes_of, shown_size


@pytest.mark.parametrize(
    "value, size",
    [
        ("auto", DISK),
        (None, None),
        (1, 10**6),
        (2.5, 2_500_000),
        ("256 MB", 256 * 10**6),
        ("1.5gb", 1_500_000_000),
        ("4000 kB", 4_000_000),
    ],
)
def test_a_budget_is_a_number_of_megabytes_or_a_text(value, size):
    assert bytes_of(value) == size


@pytest.mark.parametrize(
    "value", [0, -1, 0.5, True, "256", "MB", "12 MiB", "256 MB a night", float("nan"), float("inf"), [256], "999 kB"]
)
def test_another_value_is_refused_with_what_would_be_right(value):
    with pytest.raises(
        RuleError, match=r"disk must be a number of megabytes or a text such as '256 MB'.* at least 1 MB, or None"
    ):
        bytes_of(value)


def written(budget, steps, size, end=None):
    """The last step of each view that is written, if views of a size are written as the budget says."""
    lasts = []
    for step in range(steps):
        if (step + 1) % (1 << budget.level(step, end)) == 0:
            budget.wrote(size)
            lasts.append(step)
    return lasts


def test_every_step_is_written_until_a_share_is_used_then_windows_double():
    said = []
    budget = DiskBudget(10_000_000, said.append)
    lasts = written(budget, 100_000, 10_000)
    assert lasts[:875] == list(range(875)) and budget.written <= 10_000_000
    lengths = [b - a for a, b in zip(lasts, lasts[1:], strict=False)]
    assert all(b >= a for a, b in zip(lengths, lengths[1:], strict=False)) and all(n & (n - 1) == 0 for n in lengths)
    assert {1, 2, 4, 8, 16} <= {*lengths} and lengths[-1] <= 100_000 / 4
    assert said == [
        "lightning_hooks has written 8.75 MB and keeps this run within disk='10 MB': from step 875 on the files hold windows "
        "of steps, merged exactly, while rules and consumers see every step; disk=None writes every step"
    ]


def test_a_run_whose_end_is_known_has_shorter_windows_within_the_budget():
    known, unknown = DiskBudget(10_000_000), DiskBudget(10_000_000)
    of_known, of_unknown = written(known, 20_000, 10_000, 20_000), written(unknown, 20_000, 10_000)
    longest = [max(b - a for a, b in zip(lasts, lasts[1:], strict=False)) for lasts in (of_known, of_unknown)]
    assert longest[0] * 4 <= longest[1] and known.written <= 10_000_000


def test_a_run_that_fits_into_its_budget_has_no_windows():
    budget = DiskBudget(10_000_000)
    assert written(budget, 930, 10_000, end=930) == list(range(930))


def test_none_writes_every_step():
    budget = DiskBudget(None)
    assert written(budget, 1000, 10**9) == list(range(1000))


def test_the_default_budget_holds_ten_thousand_steps_of_five_hundred_rows():
    """By the size of a step of a GPT of ten layers: 22.8 kB for 524 rows with charts and histograms."""
    assert 10_000 * 22_800 * 500 / 524 <= FREE * DISK


def test_a_checkpoint_continues_a_budget():
    budget = DiskBudget(10_000_000)
    written(budget, 2000, 10_000)
    level = budget.level(2000, None)
    resumed = DiskBudget(10_000_000)
    resumed.continue_from(budget.state())
    resumed.continue_from(DiskState(5, 0.0))
    assert resumed.state() == budget.state() and resumed.level(2000, None) == level > 1


@pytest.mark.parametrize("state", [{"written": -1}, {"rate": -1.0}, {"rate": float("inf")}])
def test_a_state_that_no_budget_has_saved_is_refused(state):
    with pytest.raises(RuleError, match="disk must have written and rate of at least 0"):
        DiskState(**state)


def test_sizes_are_shown_in_their_unit():
    assert [shown_size(size) for size in (1_000_000, 256_000_000, 1_500_000_000)] == ["1 MB", "256 MB", "1.5 GB"]
