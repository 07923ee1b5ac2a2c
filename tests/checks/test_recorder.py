import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_hooks.checks.errors import OutOfTimeError
from lightning_hooks.checks.names import ROOT_NAME, Names
from lightning_hooks.checks.probes import PROBES
from lightning_hooks.checks.recorder import Recorder
from tests.checks._training import batch, net


def recorded(model, step, given=None, deadline=None, probes=PROBES):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    limit = time.monotonic() + 60 if deadline is None else deadline
    with Recorder(Names(model), [optimizer], limit, probes, given) as recorder:
        step(optimizer)
    return recorder.record


def test_losses_calls_gradients_and_steps_are_noted():
    model, (inputs, labels) = net(nn.Dropout()), batch()

    def step(optimizer):
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        model[0](inputs)

    record = recorded(model, step, (inputs, labels))
    assert len(record.losses) == 1 and [call.name for call in record.calls] == [ROOT_NAME, "0"]
    assert record.called == {ROOT_NAME, "0", "1", "2", "3"} and record.read == {"batch[0]", "batch[1]"}
    assert set(record.grads) == {"0.weight", "0.bias", "2.weight", "2.bias"} and min(record.grads.values()) > 0
    assert record.stepped == {0} and record.draws == [("dropout", "3", True)]
    (call,) = record.loss_calls
    assert (call.function, call.row, call.classes) == ("cross_entropy", "3", 3) and call.mean() > 0


def test_torch_remembers_no_hook_of_all_modules():
    model, (inputs, labels) = net(), batch()
    recorded(model, lambda optimizer: F.cross_entropy(model(inputs), labels).backward())
    assert not torch.nn.modules.module._has_any_global_hook()


def test_numbers_of_layers_are_those_of_their_inputs_and_outputs():
    model, (inputs, _) = net(), batch()
    record = recorded(model, lambda _: model(inputs), probes=["layers"])
    first, act, last = record.layers
    assert [each.name for each in record.layers] == ["0", "1", "2"] and first.role == "linear"
    assert first.input_mean == pytest.approx(float(inputs.mean())) and first.is_finite
    assert act.output_max == pytest.approx(model[0](inputs).relu().max().item())
    assert last.input_rms == pytest.approx(act.output_rms)


def test_nothing_stays_registered_after_an_error():
    model = net()
    with pytest.raises(ZeroDivisionError):
        recorded(model, lambda _: 1 / 0)
    calls = torch.nn.modules.module._global_forward_hooks, torch.nn.modules.module._global_forward_pre_hooks
    assert [len(each) for each in calls] == [0, 0]
    assert recorded(model, lambda _: None).called == set()


def test_a_step_ends_at_its_deadline_even_if_it_catches_exceptions():
    def step(_):
        try:
            torch.ones(1) + 1
        except Exception:
            pass

    with pytest.raises(OutOfTimeError):
        recorded(net(), step, deadline=time.monotonic() - 1)


def test_a_tensor_that_a_module_gets_by_name_is_read():
    class Masked(nn.Linear):
        def forward(self, x, mask=None):
            return super().forward(x)

    model, given = Masked(2, 1), (torch.ones(2), torch.ones(2))
    record = recorded(model, lambda _: model(given[0], mask=given[1]), given, probes=["read"])
    assert record.read == {"batch[0]", "batch[1]"}
