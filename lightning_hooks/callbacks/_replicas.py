"""Compares the replicas of a model that data-parallel ranks train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lightning_hooks.callbacks._run import run_of
from lightning_hooks.callbacks._trainer import current_step, ends_window
from lightning_hooks.rules.patterns import named_parameters
from lightning_hooks.stats.checksums import checksums, differ
from lightning_hooks.tensor_kinds import is_dense

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer

_EVERY: Final = 100
"""Steps between two comparisons of the replicas."""
_EVERY_OFTEN: Final = 10
"""The same beside a reference, so that a difference is named within 20 steps."""


def compare_replicas(trainer: Trainer, pl_module: LightningModule, *, often: bool) -> None:
    """Compare the replicas after a batch if it is time to, and note on the run which parameters differ. Collective.

    Args:
        trainer: the Trainer of the fit; nothing is compared after its run.
        pl_module: the model.
        often: whether to compare every 10 steps instead of every 100.
    """
    every = _EVERY_OFTEN if often else _EVERY
    if trainer.world_size > 1 and current_step(trainer) % every == 0 and ends_window(trainer):
        run = run_of(trainer, pl_module)
        apart = parameters_apart(trainer, pl_module) if run.is_live else None
        if apart is not None:
            run.facts.apart = apart


def parameters_apart(trainer: Trainer, pl_module: LightningModule) -> tuple[str, ...] | None:
    """The names of the parameters that differ between ranks. A collective, which waits for the device.

    Parameters that `DistributedDataParallel` is told to ignore may differ.

    Returns:
        None if the strategy keeps no equal replicas.
    """
    if not _keeps_replicas(trainer.strategy):
        return None
    ignored = set(getattr(pl_module, "_ddp_params_and_buffers_to_ignore", ()))
    known = [target for target in named_parameters(pl_module) if is_dense(target.value) and target.name not in ignored]
    if not known:
        return ()
    return tuple(known[i].name for i in differ(checksums([target.value for target in known])))


def _keeps_replicas(strategy: Any) -> bool:
    """Whether a strategy is DDP, and does not average the models of ranks only now and then."""
    is_ddp = any(kind.__name__ == "DDPStrategy" for kind in type(strategy).__mro__)
    return is_ddp and getattr(strategy, "_model_averager", None) is None
