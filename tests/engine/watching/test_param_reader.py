"""Reading what an optimizer holds: rows follow its groups, and parameters frozen or removed within its step."""

import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, Watch, instrument


def test_rows_follow_what_an_optimizer_holds_and_which_parameters_have_a_gradient():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.5)
    rule = Watch(params="*.weight", tensors=["param", "grad", "update"], stats="norm")
    with instrument(model, [StatsMonitor([rule])], optimizer=optimizer) as watched:

        def step(loss):
            optimizer.zero_grad()
            loss.backward()
            gradients = [None if p.grad is None else p.grad.clone() for p in (model[0].weight, model[1].weight)]
            optimizer.step()
            values = {tag: value for tag, value in watched.latest.items() if not tag.startswith("run/")}
            return values, gradients

        values, (first, _) = step(model(torch.ones(1, 2)).sum())
        assert values.keys() == {f"{tensor}_norm/0.weight" for tensor in ("param", "grad", "update")}
        torch.testing.assert_close(values["update_norm/0.weight"], 0.5 * first.double().norm().item())
        optimizer.add_param_group({"params": [*model[1].parameters()], "lr": 0.25})
        values, (first, second) = step(model(torch.ones(1, 2)).sum())
        assert len(values) == 6
        torch.testing.assert_close(values["update_norm/1.weight"], 0.25 * second.double().norm().item())
        values, (first, _) = step(model[0](torch.ones(1, 2)).sum())  # The second layer has no gradient in this step.
        assert "grad_norm/1.weight" not in values and values["update_norm/1.weight"] == 0.0
        torch.testing.assert_close(values["grad_norm/0.weight"], first.double().norm().item())


def test_only_parameters_that_an_optimizer_still_has_after_its_step_have_an_update():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    group = optimizer.param_groups[0]

    def step(change):
        def hook(*_):
            change()

        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        handle = optimizer.register_step_pre_hook(hook)  # Torch calls it after the copies are made, as it calls a closure.
        optimizer.step()
        handle.remove()
        return {tag: value for tag, value in watched.latest.items() if not tag.startswith("run/")}

    with instrument(
        model, [StatsMonitor([Watch(params="*.weight", tensors="update", stats="norm")])], optimizer=optimizer
    ) as watched:
        values = step(lambda: model[0].weight.requires_grad_(False))
        assert values == {"update_norm/1.weight": pytest.approx(0.5 * model[1].weight.grad.norm().item())}
        # The parameter was frozen when copies were made, so it has none.
        assert step(lambda: model[0].weight.requires_grad_(True)).keys() == {"update_norm/1.weight"}
        assert step(lambda: group.update(params=group["params"][:2])).keys() == {"update_norm/0.weight"}
        assert step(lambda: group.update(params=[nn.Parameter(torch.ones(2))])) == {}
