"""The roll-up: the deepest level of the module tree at which the scalars fit."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.stats.rollup import RollUp, TapLabel, block_of

names = st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map(".".join)
labels = st.builds(TapLabel, names, st.sampled_from(["grad", "param"]), st.sampled_from([("norm",), ("norm", "std"), ("p99",)]))


def scalars_at(depth, taps):
    return {(tap.tensor, stat, block_of(tap.name, depth)) for tap in taps for stat in tap.stats if stat != "p99"}


@settings(deadline=None, max_examples=300, derandomize=True)
@given(taps=st.lists(labels, max_size=30), room=st.integers(0, 40))
def test_the_deepest_level_that_fits_is_taken(taps, room):
    deepest = max((tap.name.count(".") + 1 for tap in taps), default=0)
    wanted = max((depth for depth in range(1, deepest + 1) if len(scalars_at(depth, taps)) <= room), default=0)
    rollup = RollUp(taps, room)
    assert rollup.depth == wanted
    assert sorted(i for block in rollup.blocks for i in block.members) == list(range(len(taps)))
