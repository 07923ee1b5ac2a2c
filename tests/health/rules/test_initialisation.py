"""Rules on the start: one layer too large, signals that fade, layers unlike their siblings, embeddings that are added."""

import pytest

from lightning_hooks.health.rules.initialisation import OddInitialization, PoorInitialization
from lightning_hooks.records.facts import ModuleFacts, ParameterFacts, StepFacts, Structure
from tests.health.rules.made import Made, diagnosed, found, of_rms, reason, run, structure_of, without_structure

DEEP = structure_of({f"net.{i}": "Linear" if i % 2 == 0 else "ReLU" for i in range(8)} | {"head": "Linear"})
LINEAR = ["net.0", "net.2", "net.4", "net.6", "head"]


def signal(sizes, weight=0.2):
    """The tensors of the deep network, with the sizes of its input and of the output of each linear layer."""
    tensors = {("input", "net.0"): of_rms(sizes[0])}
    for i, name in enumerate(LINEAR):
        tensors["input", name] = of_rms(sizes[i])
        tensors["output", name] = of_rms(sizes[i + 1])
        tensors["param", f"{name}.weight"] = of_rms(weight)
    return tensors


def test_a_layer_that_makes_its_input_far_larger_is_told():
    tensors = signal([1.0, 1.0, 31.0, 31.0, 31.0, 31.0], weight=4.0)
    (finding,) = diagnosed(PoorInitialization(), run(DEEP, tensors)).findings
    assert (finding.rows, finding.first_step, finding.is_over) == (("net.2",), 0, None)
    assert finding.message == "net.2: at the start the output was 31 times as large as the input."
    assert found(PoorInitialization(), run(DEEP, signal([1.0, 1.0, 29.0, 29.0, 29.0, 29.0], weight=4.0))) == {}


def test_a_layer_whose_bias_makes_the_output_large_is_not_called_poorly_initialised():
    assert found(PoorInitialization(), run(DEEP, signal([1.0, 1.0, 31.0, 31.0, 31.0, 31.0], weight=0.1))) == {}


@pytest.mark.parametrize(("size", "told"), [(11.0, {"rnn": 0}), (9.0, {})])
def test_a_recurrent_layer_whose_state_grows_is_told_from_ten_times_its_input_on(size, told):
    model = structure_of({"rnn": "RNN", "head": "Linear"})
    tensors = {("input", "rnn"): of_rms(1.0), ("output", "rnn"): of_rms(size), ("param", "head.weight"): of_rms(0.1)}
    assert found(PoorInitialization(), run(model, tensors)) == told


def test_a_signal_that_fades_or_grows_from_layer_to_layer_is_told():
    assert found(PoorInitialization(), run(DEEP, signal([1.0, 0.1, 1e-2, 1.1e-3, 9e-5, 1e-5]))) == {"net.6": 0}
    assert found(PoorInitialization(), run(DEEP, signal([1.0, 11.0, 121.0, 1331.0, 14641.0, 9.0]))) == {"net.6": 0}
    assert found(PoorInitialization(), run(DEEP, signal([1.0, 8.0, 64.0, 512.0, 4096.0, 9.0]))) == {}


def test_a_signal_that_a_norm_restores_is_no_finding():
    model = structure_of({"a": "Linear", "b": "Linear", "norm": "LayerNorm", "c": "Linear", "d": "Linear"})
    sizes = {"a": (1e4, 1e3), "b": (1e3, 1e2), "c": (1.0, 1.0), "d": (1.0, 1.0)}
    tensors = {("output", "norm"): Made()}
    for name, (before, after) in sizes.items():
        tensors |= {("input", name): of_rms(before), ("output", name): of_rms(after), ("param", f"{name}.weight"): of_rms(0.1)}
    order = sorted(tensors, key=lambda row: "a b norm c d".split().index(row[1].split(".")[0]))
    assert found(PoorInitialization(), run(model, {row: tensors[row] for row in order})) == {}


def test_a_bias_that_makes_the_output_large_is_no_growth_from_layer_to_layer():
    tensors = signal([1.0, 1.0, 1.0, 1.0, 1.0, 2000.0]) | {("output", "head"): Made(mean=2000.0, std=1.0)}
    kinds = {f"net.{i}": "Linear" if i % 2 == 0 else "ReLU" for i in range(8)}
    model = structure_of(kinds | {"head": "Linear", "out": "Linear"})
    tensors |= {("input", "out"): of_rms(2000.0), ("output", "out"): of_rms(2000.0), ("param", "out.weight"): of_rms(0.2)}
    assert found(PoorInitialization(), run(model, tensors)) == {"head": 0}
    assert found(PoorInitialization(), run(model, tensors | {("param", "head.bias"): Made(mean=2000.0, std=0.0)})) == {}


def test_a_large_embedding_is_told():
    model = structure_of({"embed": "Embedding", "head": "Linear"})
    tensors = {("output", "embed"): of_rms(100.0), ("input", "head"): Made(), ("param", "embed.weight"): of_rms(100.0)}
    (finding,) = diagnosed(PoorInitialization(), run(model, tensors)).findings
    assert finding.message == "embed: at the start the output had a root mean square of 100."


def weights(*sizes, **options):
    return {("param", f"{name}.weight"): of_rms(size, **options) for name, size in zip(LINEAR, sizes, strict=False)}


def test_one_of_several_equal_layers_that_starts_differently_is_told():
    (finding,) = diagnosed(OddInitialization(), run(DEEP, weights(0.07, 0.07, 0.21, 0.071))).findings
    assert (finding.rows, finding.first_step, finding.is_over) == (("net.4.weight",), 0, None)
    assert finding.message == "net.4.weight: the weight started 3 times as large as those of equal layers."
    assert found(OddInitialization(), run(DEEP, weights(0.07, 0.02, 0.07, 0.07))) == {"net.2.weight": 0}


@pytest.mark.parametrize(
    "sizes",
    [
        (0.07, 0.07, 0.17, 0.07),  # less than 2.5 times
        (0.07, 0.07),  # too few to compare
        (0.07, 0.0, 0.07, 0.07),  # zero on purpose
        (0.07, 0.10, 0.25, 0.12),  # trained weights, none of which is like another
        (0.07, 0.07, 0.3, 0.3),  # two kinds of layers
    ],
)
def test_layers_that_differ_otherwise_are_no_finding(sizes):
    assert found(OddInitialization(), run(DEEP, weights(*sizes))) == {}


def test_layers_that_are_all_far_from_usual_are_the_odd_ones():
    assert found(OddInitialization(), run(DEEP, weights(0.07, 2.8, 2.8, 2.8))) == {f"net.{i}.weight": 0 for i in (2, 4, 6)}


def test_a_layer_of_another_name_or_shape_is_no_sibling():
    model = structure_of({"net.0": "Linear", "net.2": "Linear", "head": "Linear", "net.4": "Linear"}, {"net.4": (64, 8)})
    tensors = {
        ("param", f"{name}.weight"): of_rms(size) for name, size in zip(model_names(model), (0.07, 0.07, 0.5, 0.3), strict=True)
    }
    assert found(OddInitialization(), run(model, tensors)) == {}


def model_names(model):
    return [module.name for module in model.modules]


def test_a_weight_of_one_number_is_told_unless_it_is_zero_or_frozen():
    alike = {("param", "net.0.weight"): Made(mean=0.02, std=0.0)}
    (finding,) = diagnosed(OddInitialization(), run(DEEP, alike)).findings
    assert finding.message == (
        "net.0.weight: all elements of the weight started with the same number, so that its units cannot differ."
    )
    assert found(OddInitialization(), run(DEEP, {("param", "net.0.weight"): Made(std=0.0)})) == {}
    assert found(OddInitialization(), run(DEEP, alike, facts=StepFacts(frozen=("net.0.weight",)))) == {}
    assert found(OddInitialization(), run(DEEP, {("param", "net.0.bias"): Made(mean=0.02, std=0.0)})) == {}


def recurrent(weight, of_inputs, now=None):
    """A run of a recurrent layer of 64 states, with the sizes of its two weights at first and that of the first one later."""
    names = {"rnn.weight_ih_l0": of_inputs, "rnn.weight_hh_l0": weight}
    parameters = tuple(ParameterFacts(name, "rnn", (64, 64), "float32") for name in names)
    model = Structure((ModuleFacts("rnn", "RNN", "recurrent"),), parameters)
    tensors = {("param", name): of_rms(size) for name, size in names.items()}
    if now is not None:
        tensors["param", "rnn.weight_hh_l0"] = lambda step: of_rms(now if step else weight)
    return run(model, tensors)


def test_a_recurrent_weight_whose_gain_is_too_large_is_told():
    (finding,) = diagnosed(OddInitialization(), recurrent(0.6, 0.07)).findings
    assert (finding.rows, finding.first_step, finding.severity) == (("rnn.weight_hh_l0",), 0, "warning")
    assert finding.message == (
        "rnn.weight_hh_l0: the weight from a time step to the next one started with a gain of 4.8, where 1 keeps a state at "
        "its size."
    )


@pytest.mark.parametrize(
    "sizes",
    [(0.48, 0.07), (0.6, 0.16), (0.125, 0.01), (0.6, 0.0), (0.6, 0.07, 0.2)],
    ids=["a gain below 4", "inputs alike", "orthogonal beside small inputs", "zeros", "it shrinks at once"],
)
def test_usual_recurrent_weights_are_no_finding(sizes):
    assert found(OddInitialization(), recurrent(*sizes)) == {}


def test_rules_on_the_start_say_what_they_lack():
    views = run(DEEP, signal([1.0] * 6) | weights(1.0), begin=5000)
    assert reason(PoorInitialization(), views) == "the run was watched from step 5000 on, not from its start"
    assert reason(OddInitialization(), without_structure(run(DEEP, weights(1.0)))) == "the structure of the model is not known"


def language(positions, tokens=0.5, samples=8, between=(), width=64):
    """A model that adds positions [tokens, width] to each sample of tokens; the sizes may be functions of the step."""
    names = {"tokens": "Embedding", **dict.fromkeys(between, "Linear"), "positions": "Embedding", "head": "Linear"}
    count = 1024

    def of(size, elements):
        return (lambda step: of_rms(size(step), count=elements)) if callable(size) else of_rms(size, count=elements)

    tensors = {("output", "tokens"): of(tokens, samples * count), ("output", "positions"): of(positions, count)}
    tensors |= {("input", name): Made() for name in (*between, "head")} | {("param", "head.weight"): of_rms(0.1)}
    weights = {"tokens": (100, width), "positions": (16, 64), "head": (100, 64)}
    in_order = sorted(tensors.items(), key=lambda item: [*names].index(item[0][1].removesuffix(".weight")))
    return run(structure_of(names, weights=weights), dict(in_order))


@pytest.mark.parametrize(
    ("positions", "sign", "times"), [(15.0, ">", "30"), (0.015, "<", "0.03"), (0.0, "<", "0")], ids=["large", "small", "none"]
)
def test_an_embedding_of_positions_that_drowns_that_of_tokens_or_is_lost_in_it_is_told_without_harm(positions, sign, times):
    (finding,) = diagnosed(PoorInitialization(), language(positions)).findings
    assert (finding.rows, finding.severity, finding.first_step) == (("positions",), "warning", 0)
    text = f"the output is {times} times as large as that of tokens, to which its shape lets it be added"
    assert finding.message == f"positions: {text}."
    (symptom,) = finding.evidence
    assert (symptom.measured > symptom.threshold) is (sign == ">")


def test_of_two_embeddings_that_are_added_the_one_that_is_too_large_is_told():
    (finding,) = diagnosed(PoorInitialization(), language(0.5, tokens=50.0)).findings
    assert finding.rows == ("tokens",)


@pytest.mark.parametrize(
    "views",
    [
        language(9.0),
        language(0.03),
        language(15.0, samples=1),
        language(15.0, width=32),
        language(0.015, between=("net",)),
        language(lambda step: 15.0 if step < 1 else 5.0),
        language(lambda step: 5.0 if step < 50 else 15.0),
    ],
    ids=["a little larger", "a little smaller", "one for each sample", "another width", "a layer between", "soon", "later"],
)
def test_embeddings_that_are_not_added_or_of_about_one_size_are_no_finding(views):
    assert found(PoorInitialization(), views) == {}
