"""The roll-up: the deepest level of the module tree at which the scalars fit."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.records.roll_up import Labels, RollUp, block_of

names = st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map(".".join)
stats = st.sampled_from([("norm",), ("norm", "std"), ("p99",)])
labels = st.builds(Labels, st.sampled_from(["grad", "param"]), stats, st.lists(names, max_size=6))


def scalars_at(depth, labelled):
    every = ((each, name, stat) for each in labelled for name in each.names for stat in each.stats)
    return {(each.tensor, stat, block_of(name, depth)) for each, name, stat in every if stat != "p99"}


@settings(deadline=None, max_examples=300, derandomize=True)
@given(labelled=st.lists(labels, max_size=10), limit=st.integers(0, 40))
def test_the_deepest_level_that_fits_is_taken(labelled, limit):
    deepest = max((name.count(".") + 1 for each in labelled for name in each.names), default=0)
    wanted = max((depth for depth in range(1, deepest + 1) if len(scalars_at(depth, labelled)) <= limit), default=0)
    rollup = RollUp(labelled, limit)
    assert rollup.depth == wanted
    assert sorted(i for block in rollup.blocks for i in block.members) == list(range(sum(len(each.names) for each in labelled)))
    of_position = [(each, name) for each in labelled for name in each.names]
    for block in rollup.blocks:
        kept = [of_position[i] for i in block.members]
        assert {(each.tensor, block_of(name, rollup.depth)) for each, name in kept} == {(block.tensor, block.name)}
        assert set(block.stats) == {stat for each, _ in kept for stat in each.stats} - {"p99"}
