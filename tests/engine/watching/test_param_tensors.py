"""Tensors of parameters from the optimizer's state, which a rule names by their key."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_hooks import RuleError, StatsMonitor, Watch, instrument


def step(optimizer_of, tensors, steps=2, stats=("norm", "mean")):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = optimizer_of(model.parameters())
    with instrument(
        model, [StatsMonitor([Watch(params="*.weight", tensors=tensors, stats=list(stats))])], optimizer=optimizer
    ) as watched:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().sum().backward()
            optimizer.step()
    return model, optimizer, watched.latest


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
def test_moments_of_adam(key: str) -> None:
    model, optimizer, values = step(lambda p: torch.optim.AdamW(p, lr=0.1), [f"state.{key}"])
    state = optimizer.state[model[0].weight][key].double()
    assert values[f"state.{key}_norm/0.weight"] == pytest.approx(state.norm().item(), rel=1e-6)
    assert values[f"state.{key}_mean/0.weight"] == pytest.approx(state.mean().item(), rel=1e-6)


def test_a_number_in_the_state() -> None:
    _, _, values = step(lambda p: torch.optim.AdamW(p), ["state.step"], steps=3)
    assert values["state.step_mean/1.weight"] == 3.0


def test_the_momentum_of_sgd_beside_the_update() -> None:
    model, optimizer, values = step(lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9), ["state.momentum_buffer", "update"])
    buffer = optimizer.state[model[0].weight]["momentum_buffer"].double().norm().item()
    assert values["state.momentum_buffer_norm/0.weight"] == pytest.approx(buffer, rel=1e-6)
    assert values["update_norm/0.weight"] == pytest.approx(0.5 * buffer, rel=1e-4)


def test_an_unknown_key_names_those_there_are() -> None:
    with pytest.raises(RuleError) as caught:
        step(torch.optim.AdamW, ["state.exp_avg_sqr"])
    assert str(caught.value) == (
        "watch[0].tensors: 'state.exp_avg_sqr': AdamW has no 'exp_avg_sqr' (did you mean 'exp_avg_sq' or 'exp_avg' or 'step'?)"
        "; it has step, exp_avg, exp_avg_sq. Set strict=False if this is intended"
    )


def test_an_optimizer_that_keeps_other_things_or_nothing_says_so() -> None:
    with pytest.raises(
        RuleError, match=r"^watch\[0\]\.tensors: 'state.exp_avg': Adagrad has no 'exp_avg'.*; it has step, sum\. Set"
    ):
        step(torch.optim.Adagrad, ["state.exp_avg"])
    with pytest.raises(
        RuleError, match=r"^watch\[0\]\.tensors: .* SGD has no 'momentum_buffer'; it keeps nothing for this param"
    ):
        step(lambda p: torch.optim.SGD(p, lr=0.1), ["state.momentum_buffer"])


def test_a_rule_that_is_not_strict_watches_it_where_there_is_one() -> None:
    rules = [
        Watch(params="*.weight", tensors=["state.exp_avg", "update"], stats="norm", strict=False),
        Watch(params="*.weight", tensors="state.momentum_buffer", stats="norm"),
    ]
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.warns(
        UserWarning, match=r"^watch\[0\]\.tensors: 'state.exp_avg': SGD has no 'exp_avg'.*it has momentum_buffer$"
    ) as w:
        with instrument(model, [StatsMonitor(rules)], optimizer=optimizer) as watched:
            for _ in range(2):
                model(torch.randn(4, 3)).square().sum().backward()
                optimizer.step()
    assert len(w) == 1
    rows = {tag for tag in watched.latest if not tag.startswith("run/")}
    assert rows == {f"{t}_norm/{i}.weight" for t in ("update", "state.momentum_buffer") for i in (0, 1)}


def test_without_an_optimizer_it_is_refused() -> None:
    with pytest.raises(RuleError, match=r"^watch\[0\].tensors: 'state.step' is only seen with an optimizer"):
        instrument(nn.Sequential(nn.Linear(1, 1)), [StatsMonitor([Watch(params="*", tensors="state.step")])])


class Notes(torch.optim.SGD):
    """An optimizer whose state holds a string and a number for each parameter."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"word": "a", "count": torch.tensor([2, 4])}
        return super().step(closure)


def test_a_state_that_is_no_real_tensor_is_named() -> None:
    with pytest.raises(RuleError, match=r"^watch\[0\].tensors: 'state.word' of Notes is not a tensor but str. Set strict"):
        step(lambda p: Notes(p, lr=0.1), ["state.word"])


def test_integers_in_the_state_are_read() -> None:
    _, _, values = step(lambda p: Notes(p, lr=0.1), ["state.count"])
    assert values["state.count_mean/0.weight"] == 3.0


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
def test_a_complex_state_counts_each_number_as_two(key: str) -> None:
    model = nn.Linear(3, 2, dtype=torch.complex64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with instrument(model, [StatsMonitor([Watch(params="weight", tensors=f"state.{key}")])], optimizer=optimizer) as watched:
        model(torch.randn(4, 3, dtype=torch.complex64)).abs().sum().backward()
        optimizer.step()
    state = torch.view_as_real(optimizer.state[model.weight][key])
    values = watched.latest
    assert values[f"state.{key}_norm/weight"] == pytest.approx(state.norm().item(), rel=1e-6)
    assert values[f"state.{key}_mean/weight"] == pytest.approx(state.mean().item(), rel=1e-6)
