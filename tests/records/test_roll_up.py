"""The roll-up: the deepest level of the module tree at which the scalars fit."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.records.roll_up import Labels, RollUp, block_of

names = st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map(".".join)
stats = st.sampled_from([("norm",), ("norm", "std"), ("p99",)])
labels = st.builds(Labels, st.sampled_from(["grad", "param"]), stats, st.lists(names, max_size=6))


def scalars_at(depth, taps):
    return {
        (tap.tensor, stat, block_of(name, depth)) for tap in taps for name in tap.names for stat in tap.stats if stat != "p99"
    }


@settings(deadline=None, max_examples=300, derandomize=True)
@given(taps=st.lists(labels, max_size=10), room=st.integers(0, 40))
def test_the_deepest_level_that_fits_is_taken(taps, room):
    deepest = max((name.count(".") + 1 for tap in taps for name in tap.names), default=0)
    wanted = max((depth for depth in range(1, deepest + 1) if len(scalars_at(depth, taps)) <= room), default=0)
    rollup = RollUp(taps, room)
    assert rollup.depth == wanted
    assert sorted(i for block in rollup.blocks for i in block.members) == list(range(sum(len(tap.names) for tap in taps)))
    of_position = [(tap, name) for tap in taps for name in tap.names]
    for block in rollup.blocks:
        kept = [of_position[i] for i in block.members]
        assert {(tap.tensor, block_of(name, rollup.depth)) for tap, name in kept} == {(block.tensor, block.name)}
        assert set(block.stats) == {stat for tap, _ in kept for stat in tap.stats} - {"p99"}
