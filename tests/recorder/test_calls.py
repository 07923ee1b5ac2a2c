"""The trail of a record: entries get the names of their rows, their batch and the number of the call."""

import numpy as np

from lightning_hooks.recorder.calls import Calls, Mark
from lightning_hooks.stats.schema import TRAIL_ENTRY

ROWS = [("a", "output"), ("b", "output"), ("b", "output_grad"), ("loss", "loss")]


def trail(*entries):
    return np.array(list(entries), TRAIL_ENTRY).tobytes()


def test_names_calls_and_batches():
    packed = trail((0, -1, 1, 0), (1, 0, 2, 0), (1, 0, 3, 0), (3, 5, 5, 0), (0, -2, 2, 0), (1, np.nan, np.nan, 4))
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
    assert (named[5].minimum, named[5].maximum, named[5].nonfinite) == (None, None, 4)
    assert calls.named(-3, 1) == named[:1] and calls.named(4) == named[4:]


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
