"""`check`: finds in one batch what need not be found after a night. This file loads Lightning only if a Trainer is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_hooks.checks.arguments import as_plain_training
from lightning_hooks.checks.engine import TIME_LIMIT, run_checks
from lightning_hooks.checks.reading import as_accepted, as_checks
from lightning_hooks.checks.result import CheckReport
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import RuleError, shown
from lightning_hooks.health.accepting import Accept


def check(
    model: Any,
    batch: Any = None,
    data: Any = None,
    *,
    loss: Any = None,
    optimizer: Any = None,
    step: Any = None,
    accumulate: int = 1,
    checks: Mapping[str, Any] | Sequence[Any] | None = None,
    accept: Accept = None,
    time_limit: float = TIME_LIMIT,
) -> CheckReport:
    """Check a training on one batch. Everything is restored afterwards, bit for bit.

    Call it as `check(model, batch, loss=..., optimizer=...)` for any module, or as `check(trainer, module, datamodule)` for
    Lightning. A Trainer with the settings of the given one, without its callbacks and loggers, then takes the first batch.

    Args:
        model: the module, or a Trainer.
        batch: with `loss`, the pair `(inputs, target)`; inputs in a tuple are positional arguments, in a mapping arguments by
            name. With `step`, whatever it takes. Without both, the input of a model that returns its loss. After a Trainer,
            the LightningModule.
        data: after a Trainer, the data module or the loader; None if the module has a loader itself.
        loss: called as `loss(output, target)`.
        optimizer: one, or a list of these.
        step: called as `step(model, batch)`; returns the loss. Instead of `loss`.
        accumulate: the number of batches whose gradients the loop adds up for one step of the optimizer. Then `loss` or `step`
            returns the loss of one of them, as the loop differentiates it: divided if the loop divides it. A Trainer knows it.
        checks: which checks to run; default all that are on. A mapping changes fields, or turns a check on or off:
            `{"OverfitsBatch": True, "InitialLoss": {"factor": 3.0}}`. A list uses only its entries.
        accept: results that are known and no problem: `BiasBeforeNorm/net.*`, or the name of a check; or a file of these, as of
            `HealthMonitor`.
        time_limit: of each check, in seconds; a check that takes longer is skipped.

    Raises:
        RuleError: an invalid argument, or an unknown check.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3), torch.nn.Softmax(1))
        >>> batch = torch.randn(16, 4), torch.randint(3, (16,))
        >>> report = check(model, batch, loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> bool(report.ok), report["ActivationBeforeLoss"].message
        (False, '3: a softmax stands in front of `cross_entropy`, which applies it again')
    """
    chosen = as_checks(checks)
    accepted = as_accepted(accept, chosen)
    if isinstance(time_limit, bool) or not isinstance(time_limit, (int, float)) or not time_limit > 0:
        raise RuleError(f"check: time_limit must be a number of seconds above 0, got {shown(time_limit)}")

    def run(training: Training, batch: Any) -> CheckReport:
        return run_checks(training, batch, chosen, accepted, time_limit)

    if not hasattr(model, "fit_loop"):
        if data is not None:
            raise RuleError("check: a third argument belongs to a Trainer: check(trainer, module, datamodule)")
        return run(as_plain_training(model, batch, loss, optimizer, step, accumulate), batch)
    for name, value in (("loss", loss), ("optimizer", optimizer), ("step", step)):
        if value is not None:
            raise RuleError(f"check: with a Trainer, {name} is that of the LightningModule; do not give it")
    if accumulate != 1:
        raise RuleError("check: with a Trainer, its accumulate_grad_batches counts; do not give accumulate")
    from lightning_hooks.callbacks._check_fit import check_in_own_fit

    return check_in_own_fit(model, batch, data, run)
