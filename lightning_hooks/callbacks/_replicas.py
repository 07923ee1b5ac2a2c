"""Compares the replicas of a model that data-parallel ranks train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_hooks.rules.patterns import named_parameters
from lightning_hooks.stats.checksums import checksums, differ
from lightning_hooks.tensor_kinds import is_dense

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


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
