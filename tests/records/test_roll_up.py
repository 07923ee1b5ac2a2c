"""The roll-up: first statistics get the deepest level that fits, then the other statistics get deeper level by level."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.plan.groups import block_of
from lightning_hooks.records.roll_up import StageColumn, roll_up

names = st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map(".".join)
labels = st.builds(
    StageColumn,
    st.sampled_from(["train", "validate"]),
    st.sampled_from(["grad", "param"]),
    st.sampled_from(["mean", "norm", "std", "p99"]),
    st.lists(names, max_size=6, unique=True).map(tuple),
    st.frozensets(names, max_size=2),
)


def scalars(column, level):
    return {block_of(name, level) for name in column.names} - column.kept


@settings(deadline=None, max_examples=300, derandomize=True)
@given(columns=st.lists(labels, max_size=8, unique_by=lambda each: each[:3]), limit=st.integers(0, 40))
def test_the_limit_is_kept_and_nothing_more_would_fit(columns, limit):
    found = roll_up(columns, limit)
    fixed = sum(len(column.kept) for column in columns)
    spent = sum(len(scalars(columns[i], level)) for i, level in found.levels.items())
    assert found.written == fixed + spent and found.total == fixed + sum(len(scalars(c, 9)) for c in columns)
    assert spent <= max(limit - fixed, 0)
    left = max(limit - fixed, 0) - spent
    for i, column in enumerate(columns):
        level = found.levels.get(i, 0)
        now = len(scalars(column, level)) if i in found.levels else 0
        assert column.mergeable or level in (0, found.deepest)
        # The next level does not fit.
        if level < found.deepest:
            deeper = level + 1 if column.mergeable else found.deepest
            assert len(scalars(column, deeper)) - now > left
    if all(c.stat == "norm" for c in columns):
        fitting = [d for d in range(found.deepest + 1) if sum(len(scalars(c, d)) for c in columns) <= limit - fixed]
        assert found.level == max(fitting, default=0)


def transformer(layers=24):
    """Names of the parameters of a large transformer."""
    parts = [f"{part}.{kind}" for part in ("attn.qkv", "attn.out", "mlp.up", "mlp.down") for kind in ("weight", "bias")]
    return (*(f"net.layers.{i}.{part}" for i in range(layers) for part in parts), "net.embed.weight", "head.weight")


def test_four_thousand_scalars_show_their_blocks_and_never_one_row_for_all():
    stats = ("mean", "std", "norm", "abs_max", "zero_fraction", "nonfinite")
    columns = [
        StageColumn("train", tensor, stat, transformer()) for tensor in ("output", "param", "grad", "update") for stat in stats
    ]
    found = roll_up(columns, 500)
    assert found.total == 4 * 6 * 194 and found.written <= 500
    # At level 5 (net.layers.7.attn.qkv) each of the four tensors has 98 blocks.
    assert found.level == 5
    norms = [i for i, column in enumerate(columns) if column.stat == "norm"]
    assert all(found.levels[i] == 5 for i in norms)
    assert all(level > 0 for level in found.levels.values())
    assert found.next_limit == 4 * 194
    assert roll_up(columns, found.next_limit).level == found.level + 1


def test_a_limit_below_the_number_of_tensors_is_kept_too():
    columns = [StageColumn("train", tensor, "norm", transformer()) for tensor in ("param", "grad", "update")]
    found = roll_up(columns, 2)
    assert (found.level, found.levels, found.written) == (0, {0: 0, 1: 0}, 2)


def test_stages_share_one_limit():
    columns = [StageColumn(stage, "output", stat, transformer()) for stage in ("train", "validate") for stat in ("norm", "std")]
    assert roll_up(columns, 300).written <= 300
