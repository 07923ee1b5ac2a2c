"""What lookouts put in the place of attributes of torch for a fit is given back after it, also after an error and Ctrl-C."""

from types import FunctionType

import pytest
import torch
import torch.utils.data
from torch import nn

from lightning_hooks import HealthMonitor, StatsMonitor, instrument
from tests.callbacks.models import Net, assert_clean, data, trainer_of

PLACES = (
    *(torch, torch.Tensor, torch.autograd, torch.nn.functional, torch.nn.Module, torch.optim, torch.optim.Optimizer),
    *(torch.utils, torch.nn.utils, torch.nn.utils.clip_grad, torch.amp.GradScaler),
    *(torch.utils.data, torch.utils.data.DataLoader, torch.utils.data.BatchSampler),
)


def attributes():
    """The id of each attribute of torch that somebody might replace; what a decorator has kept in cells counts too."""
    found = {(place, name): value for place in PLACES for name, value in vars(place).items()}
    cells = {
        (*key, i): cell.cell_contents
        for key, value in found.items()
        for i, cell in enumerate(value.__closure__ or () if isinstance(value, FunctionType) else ())
        if hasattr(cell, "cell_contents")
    }
    return {key: id(value) for key, value in {**found, **cells}.items() if not key[1].startswith("__")}


def changed(before):
    return {key for key, value in attributes().items() if before.get(key, value) != value}


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_plain_loop_gives_back_each_attribute_of_torch(error):
    before, within = attributes(), set()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train():
        with instrument(model, [StatsMonitor(loggers=[]), HealthMonitor()], optimizer=optimizer):
            for step in range(3):
                optimizer.zero_grad()
                model(torch.randn(8, 4)).square().mean().backward()
                within.update(changed(before))
                if step and error is not None:
                    raise error
                optimizer.step()

    if error is None:
        train()
    else:
        with pytest.raises(error):
            train()
    assert (torch.autograd, "backward") in within and (torch.optim.Optimizer, "zero_grad") in within
    assert changed(before) == set()


class Fails(Net):
    """Raises in its second batch."""

    def __init__(self, error):
        super().__init__()
        self.error, self.within, self.before = error, set(), attributes()

    def training_step(self, batch, batch_idx):
        self.within |= changed(self.before)
        if batch_idx and self.error is not None:
            raise self.error
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_fit_gives_back_each_attribute_of_torch(tmp_path, error):
    model = Fails(error)
    trainer = trainer_of(tmp_path, StatsMonitor(loggers=[]), HealthMonitor())
    try:
        trainer.fit(model, data())
    except (ValueError, KeyboardInterrupt, SystemExit):
        assert error is not None
    assert (torch.optim.Optimizer, "zero_grad") in model.within
    assert changed(model.before) == set()
    assert_clean(model)
