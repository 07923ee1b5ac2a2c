from hypothesis import given
from hypothesis import strategies as st

from lightning_hooks.dashboard.tree import tree

NAME = st.lists(st.sampled_from(["a", "b", "0", "1", "w"]), min_size=1, max_size=4).map(".".join)


def shown(names, about=None):
    return [(node.label, node.depth, node.row) for node in tree(names, about or {})]


def test_parts_with_one_part_below_are_one_node():
    assert shown(["a.b.c.w", "a.b.d.w"]) == [("a.b", 0, None), ("c.w", 1, 0), ("d.w", 1, 1)]


def test_a_module_that_is_a_row_and_has_rows_below():
    assert shown(["enc", "enc.0", "enc.1"]) == [("enc", 0, None), ("(enc itself)", 1, 0), ("0", 1, 1), ("1", 1, 2)]


def test_the_order_of_execution_comes_before_that_of_definition():
    about = {"late": {"order": 0}, "early": {"order": 1}, "head": {"order": 2}}
    names = ["early.weight", "late.weight", "late.bias", "head.weight", "never.weight"]
    found = [node.name for node in tree(names, about) if node.row is not None]
    assert found == ["late.weight", "late.bias", "early.weight", "head.weight", "never.weight"]


def test_names_with_dots_spaces_and_nothing():
    assert shown(["", "layers.Layer 0.0.w"]) == [("", 0, 0), ("layers.Layer 0.0.w", 0, 1)]


@given(st.lists(NAME, unique=True, max_size=20))
def test_every_row_is_there_once_and_parts_hold_what_follows(names):
    nodes = tree(names, {})
    assert sorted(node.row for node in nodes if node.row is not None) == list(range(len(names)))
    for i, node in enumerate(nodes):
        below = []
        for other in nodes[i + 1 :]:
            if other.depth <= node.depth:
                break
            if other.row is not None:
                below.append(other.row)
        assert node.leaves == (below if node.row is None else [node.row])
        assert len(node.leaves) > 1 or node.row is not None


def test_modules_of_one_class_that_are_not_called_are_one_folded_group_at_the_end():
    about = {name: {"type": "Expert", "called": False} for name in ("experts.1", "experts.2", "experts.3")}
    about |= {"spare": {"type": "Linear", "called": False}, "experts.0": {"type": "Expert"}}
    nodes = tree(["experts.0", "experts.1", "experts.2", "spare", "experts.3", "head"], about)
    assert [(node.label, node.depth, node.row, node.leaves, node.closed) for node in nodes] == [
        ("experts.0", 0, 0, [0], False),
        ("spare", 0, 3, [3], False),
        ("head", 0, 5, [5], False),
        ("Expert, not called in the first step", 0, None, [1, 2, 4], True),
        ("experts.1", 1, 1, [1], False),
        ("experts.2", 1, 2, [2], False),
        ("experts.3", 1, 4, [4], False),
    ]
    assert nodes[3].as_json(about, {})["closed"] and "closed" not in nodes[0].as_json(about, {})
