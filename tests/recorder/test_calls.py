"""The trail of a record: entries get the names of their rows, their batch and the number of the call."""

import math

import numpy as np
import pytest
import torch

from lightning_hooks.recorder.calls import Calls, Mark
from lightning_hooks.stats import kernels
from lightning_hooks.stats.schema import MAX, MIN, TRAIL_ENTRY

ROWS = [("a", "output"), ("b", "output"), ("b", "output_grad"), ("loss", "loss")]


def trail(*entries):
    """Entries, packed; the smallest magnitude may be left out."""
    return np.array([(*each, np.nan)[:5] for each in entries], TRAIL_ENTRY).tobytes()


def test_names_calls_and_batches():
    packed = trail((0, -1, 1, 0, 0.25), (1, 0, 2, 0), (1, 0, 3, 0), (3, 5, 5, 0), (0, -2, 2, 0), (1, np.nan, np.nan, 4))
    calls = Calls(packed, 6, [Mark(0, 7, 0), Mark(4, 7, 1)], ROWS)
    named = calls.named()
    assert [(each.name, each.step, each.micro_batch, each.call) for each in named] == [
        ("a", 7, 0, 0),
        ("b", 7, 0, 0),
        ("b", 7, 0, 1),
        ("loss", 7, 0, 0),
        ("a", 7, 1, 0),
        ("b", 7, 1, 0),
    ]
    assert (named[0].minimum, named[0].maximum, named[0].nonfinite) == (-1.0, 1.0, 0)
    assert [each.abs_min for each in named[:2]] == [0.25, None]
    assert (named[5].minimum, named[5].maximum, named[5].nonfinite) == (None, None, 4)
    assert calls.named(-3, 1) == named[:1] and calls.named(4) == named[4:]


@pytest.mark.parametrize(
    ("extremes", "count", "text"),
    [
        ((-1, 1), 0, ""),
        ((np.nan, np.nan), 4, "4, with NaN"),
        ((np.nan, np.nan), 1, "1 NaN"),
        ((-1, np.inf), 4, "4 +Inf"),
        ((np.inf, np.inf), 4, "4 +Inf"),
        ((-np.inf, 1), 4, "4 −Inf"),
        ((-np.inf, np.inf), 4, "4 ±Inf"),
    ],
)
def test_what_the_extremes_say_of_elements_that_are_not_finite(extremes, count, text):
    (entry,) = Calls(trail((0, *extremes, count)), 1, [Mark(0, 7, 0)], ROWS).named()
    assert entry.nonfinite_text == text and entry.abs_max == (None if count else 1.0)


@pytest.mark.parametrize("bad", [[math.nan], [math.inf], [-math.inf], [math.inf, -math.inf], [math.inf, math.nan, -math.inf]])
def test_all_kernels_note_extremes_from_which_this_follows(bad):
    tensor = torch.tensor([3.0, -2.0, *bad, 0.5])
    low, high = kernels.measure_many([tensor])[0, [MIN, MAX]].tolist()
    (entry,) = Calls(trail((0, low, high, len(bad))), 1, [Mark(0, 7, 0)], ROWS).named()
    has_nan = any(map(math.isnan, bad))
    kinds = {(True, False): "+inf", (False, True): "-inf", (True, True): "inf"}
    assert entry.kind == ("nan" if has_nan else kinds[math.inf in bad, -math.inf in bad])


def test_a_joined_row_and_the_call_before():
    packed = trail((0, 0, 1, 0), (1, 0, 1, 0), (2, 0, 1, 0), (0, 0, 1, 0), (1, np.nan, np.nan, 1))
    calls = Calls(packed, 5, [Mark(0, 3, 0), Mark(3, 4, 0)], ROWS, {1})
    assert calls.is_joined(4) and not calls.is_joined(3)
    assert calls.before(4, "output").name == "a" and calls.before(3, "output") is None and calls.before(4, "loss") is None


def test_the_first_bad_call_of_a_step():
    packed = trail((0, 0, 1, 9), (0, 0, 1, 0), (1, 0, np.inf, 2), (2, np.nan, 0, 1))
    calls = Calls(packed, 4, [Mark(0, 3, 0), Mark(1, 4, 0)], ROWS)
    assert calls.first_bad(3) == 0 and calls.first_bad(4) == 2 and calls.first_bad(5) is None
    assert calls.first_bad(4, usual={1}) == 3  # the infinities of a mask
    assert calls.first_bad(4, tensors=("output_grad",)) == 3


def test_entries_that_the_ring_has_lost():
    calls = Calls(trail((0, 0, 1, 0), (1, 0, 1, 5)), 1002, [Mark(990, 8, 0), Mark(1001, 9, 0)], ROWS)
    assert [each.step for each in calls.named()] == [8, 9]
    assert calls.first_bad(9) == 1
    assert Calls(b"", 0, [], ROWS).named() == ()
