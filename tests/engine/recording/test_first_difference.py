"""The first operator at which two runs of a step differ is named, with its module, its line and what it read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.engine.recording.examination import run_step
from lightning_hooks.engine.recording.fingerprints import OperatorRun, StepRun, digest_of, followed, shape_of
from lightning_hooks.engine.recording.first_difference import first_difference


class Net(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.drop, self.norm, self.head = nn.Linear(3, 4), nn.Dropout(), nn.LayerNorm(4, eps), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder(x)
        hidden = self.drop(hidden)
        return self.head(self.norm(hidden))


def ran(model: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor] | None = None, seed: int = 1) -> StepRun:
    """A whole step of a model, from the state in which it was made."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.linspace(0, 1, 6).view(2, 3)
    torch.manual_seed(seed)

    def step() -> None:
        (model(x).square().mean() if loss is None else loss(model, x)).backward()
        optimizer.step()

    return followed(model, lambda: run_step(step))


def differ(one: StepRun, other: StepRun) -> Any:
    assert not one.notes and not other.notes
    found = first_difference(one.operators, other.operators)
    assert found is not None
    return found


def test_two_equal_runs_have_no_difference() -> None:
    assert first_difference(ran(Net()).operators, ran(Net()).operators) is None


def test_dropout_without_a_seed_is_named() -> None:
    found = differ(ran(Net()), ran(Net(), seed=2))
    assert found.one.operator == "aten.bernoulli_" and found.one.call.module == "drop" and found.one.is_random
    assert found.one.line.text == "hidden = self.drop(hidden)"
    assert found.text.startswith("The first operator is equal to the last bit. Operator 2, aten.bernoulli_ in drop (Dropout), ")
    assert "read the same bits and gave others (2x4 float32). It draws random numbers: " in found.text


def test_of_a_port_another_constant_is_named() -> None:
    found = differ(ran(Net().eval()), ran(Net(1e-6).eval()))
    assert found.one.call.module == "norm"
    assert found.text.endswith("was called with eps=1e-05 in the first run and with eps=1e-06 in the second.")


class Port(Net):
    """Computes the encoder by other operators, and forgets its bias."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x @ self.encoder.weight.t()))


def test_operators_of_a_port_are_aligned_by_name() -> None:
    found = differ(ran(Net().eval()), ran(Port()))
    assert "Only the first run has its operator 1, aten.addmm in encoder (Linear), call 1" in found.text
    assert found.one.operator == found.other.operator == "aten.native_layer_norm"
    assert found.text.count("is the first that both have and that reads other numbers, in input. What only one run has ") == 1


def test_another_view_is_told_from_another_result() -> None:
    found = differ(
        ran(Net().eval(), lambda model, x: model(x)[:, 0].square().mean()),
        ran(Net().eval(), lambda model, x: model(x)[:, 1].square().mean()),
    )
    assert found.one.operator == "aten.pow" and found.one.call.module == ""
    assert "is the first that both have and that reads other numbers, in self. No operator before it gave other " in found.text


def test_an_operator_of_one_run_only_is_named_if_all_others_are_equal() -> None:
    found = differ(ran(Net().eval()), ran(Net().eval(), lambda model, x: model(x * 1.0).square().mean()))
    assert found.one is None and found.other.operator == "aten.mul" and found.skipped == 0
    assert (
        " operators that both runs have are equal to the last bit. Only the second run has its operator 1, aten.mul "
        in found.text
    )


class Adding(nn.Module):
    """Adds memory that nothing has initialised."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.empty(1000, 3)
        return (self.scale * x.sum() + bias).sum()


def test_memory_that_nothing_has_initialised_is_named() -> None:
    one = ran(Adding())
    at = next(i for i, each in enumerate(one.operators) if each.uninitialised)
    assert one.operators[at].operator == "aten.add" and one.operators[at].uninitialised == ("other",)
    # What is in the memory is chance, so put other numbers there.
    inputs = (one.operators[at].inputs[0], ("other", "1000x3 float32 0123"))
    other = [*one.operators[:at], replace(one.operators[at], inputs=inputs), *one.operators[at + 1 :]]
    found = first_difference(one.operators, other)
    assert found is not None
    assert found.text.endswith("in other, which is memory that nothing has initialised, as torch.empty returns it.")


def test_sums_in_another_order_are_not_deterministic() -> None:
    one = ran(Net())
    at = next(i for i, each in enumerate(one.operators) if each.node == "AddmmBackward0")
    changed = replace(one.operators[at], outputs=("2x4 float32 0123",))
    found = first_difference(one.operators, [*one.operators[:at], changed, *one.operators[at + 1 :]])
    assert found is not None and found.number == at + 1
    assert "aten.mm, backward of AddmmBackward0 in head (Linear), call 1, at tests/engine/recording/test_first_" in found.text
    assert "torch.use_deterministic_algorithms(True) replaces such an operator, or names it" in found.text


def test_a_step_that_raises_or_takes_too_long_is_compared_up_to_there() -> None:
    def fails(model: nn.Module, x: Tensor) -> Tensor:
        model(x)
        raise ValueError("no target")

    step = ran(Net(), fails)
    assert step.notes == ("the step raised ValueError: no target",) and len(step.operators) > 3
    late = followed(Net(), lambda: run_step(lambda: torch.ones(2) + 1), limit=-1.0)
    assert late == StepRun((), ("the step was stopped after -1 s",))


def test_a_run_leaves_no_hook_and_changes_no_number() -> None:
    def weights(follows: bool) -> list[Tensor]:
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        torch.manual_seed(3)

        def step() -> None:
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

        followed(model, lambda: run_step(step)) if follows else step()
        return [*model.parameters(), torch.random.get_rng_state()]

    assert all(map(torch.equal, weights(True), weights(False)))


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(2, 3, dtype=torch.bfloat16), torch.arange(4), torch.ones(2, dtype=torch.complex64), torch.empty(3, 0)],
)
def test_tensors_of_any_type_have_a_digest(tensor: Tensor) -> None:
    assert digest_of(tensor) == digest_of(tensor.clone()) != digest_of(tensor[None])
    assert shape_of(digest_of(tensor)).endswith(str(tensor.dtype)[6:])
    assert digest_of(torch.eye(2).to_sparse()) == "unread"


def test_runs_are_plain_values() -> None:
    assert all(isinstance(each, OperatorRun) for each in ran(Net()).operators)
