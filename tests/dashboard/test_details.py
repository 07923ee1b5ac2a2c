from lightning_hooks.dashboard.details import details
from lightning_hooks.dashboard.tree import tree


def test_details_are_those_of_the_structure_and_only_of_modules_without_children():
    structure = {
        "modules": [
            ["", "Net", "container"],
            ["encoder", "Sequential", "container"],
            ["encoder.0", "Linear", "linear"],
            ["encoder.1", "ReLU", "activation"],
        ],
        "parameters": [
            ["encoder.0.weight", "encoder.0", [32, 64], "float32", []],
            ["encoder.0.bias", "encoder.0", [32], "float32", []],
        ],
    }
    assert details([structure], {}) == {"encoder.0": "Linear 64→32", "encoder.1": "ReLU"}


def test_without_a_structure_the_facts_about_rows_are_used():
    about = {"fc": {"type": "Linear", "shape": [8, 5], "order": 0}, "fc.weight": {"type": "Linear", "shape": [5, 3]}}
    assert details([None], about) == {"fc": "Linear 3→5"}


def test_damaged_structures_state_nothing():
    damaged = {
        "modules": [["a"], 3, ["a", 4, "x"]],
        "parameters": [["a.weight", "a", ["x"], "float32", []], ["a", "b", 5, "c", []]],
    }
    assert details([damaged, 5, {"modules": {}}], {}) == {}


def test_a_parameter_has_the_detail_of_its_module_only_if_no_group_has_it():
    nodes = tree(["net.0.weight", "net.0.bias", "head.weight"], {})
    found = {node.label: node.as_json({}, {"net.0": "Linear 4→4", "head": "Linear 4→1"})["detail"] for node in nodes}
    assert found == {"net.0": "Linear 4→4", "weight": "", "bias": "", "head.weight": "Linear 4→1"}
