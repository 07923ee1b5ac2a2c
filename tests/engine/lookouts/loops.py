"""Small trainings under a `HealthMonitor`, and what its rules say of them, in a plain loop and by a Trainer."""

import warnings

from torch.utils.data import DataLoader

from lightning_hooks import HealthMonitor, StatsMonitor, instrument
from tests.callbacks.models import assert_clean, trainer_of


def in_loop(model, optimizers, loop, rules=None, steps=30):
    """What is said of a plain loop.

    Args:
        model: the root module.
        optimizers: one or several.
        loop: called with the `Instrument` and the number of each step; it makes one step.
        rules: as of `HealthMonitor`; all by default.
        steps: how many.

    Returns:
        The findings: {rule: finding}.
    """
    monitor = HealthMonitor() if rules is None else HealthMonitor(rules=rules)
    with instrument(model, [StatsMonitor(loggers=[]), monitor], optimizer=optimizers) as watched:
        for step in range(steps):
            loop(watched, step)
    return {each.rule: each for each in monitor.findings}


def in_trainer(folder, module, batches, rules=None, callbacks=(), **options):
    """What is said of a fit of a Trainer with more `callbacks`; `options` are those of the Trainer."""
    monitor = HealthMonitor() if rules is None else HealthMonitor(rules=rules)
    trainer = trainer_of(folder, StatsMonitor(loggers=[]), monitor, *callbacks, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, DataLoader(batches, batch_size=None))
    assert_clean(module)
    return {each.rule: each for each in monitor.findings}
