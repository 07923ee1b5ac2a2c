"""`aggregate_losses` combines the gradients of several losses with an aggregator of TorchJD."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, UnsupportedError, did_you_mean, shown

if TYPE_CHECKING:
    from torchjd.aggregation import Aggregator


def aggregate_losses(
    losses: Sequence[Tensor],
    *,
    params: Iterable[Tensor] | None = None,
    aggregator: str | Aggregator = "PCGrad",
    retain_graph: bool = False,
    parallel_chunk_size: int | None = 1,
    alone: bool = False,
) -> Tensor | None:
    """Differentiate several losses and add one combined gradient to `.grad`; replaces `sum(losses).backward()`.

    For a plain loop, or for a LightningModule with manual optimization, where it replaces `manual_backward`. Everything
    that happens to gradients at the optimizer's step follows as usual: `GradientTransforms` with `when="step"`, clipping,
    statistics of `grad`. TorchJD computes the combination.

    Differences from `backward`, because TorchJD computes gradients with `torch.autograd.grad`:

    - hooks inside the graph (a module's `output_grad`, transforms with `when="backward"`) see one pass for each loss;
    - hooks after accumulation (`post_accumulate_grad`) do not run;
    - DDP does not average the gradients, so more than one process is refused;
    - the loss scaler is bypassed: with `precision="16-mixed"` gradients would be divided by a scale that was never
      applied. Use `bf16-mixed` or `32-true`.

    Some aggregators draw random numbers from torch's global generator (PCGrad, GradDrop, Random).

    Args:
        losses: scalar losses that share a graph; at least one.
        params: the parameters that get gradients and over which the combined gradient is computed; by default every leaf
            that the losses depend on. A parameter that no loss depends on gets zeros, not None.
        aggregator: how to combine; the name of a class in `torchjd.aggregation` that needs no arguments and keeps no state
            (`"PCGrad"`, the default: Yu et al., "Gradient Surgery for Multi-Task Learning", 2020; `"MGDA"`, `"AlignedMTL"`,
            `"ConFIG"` …), or an instance of any class there. Some classes need more packages: `"UPGrad"` (Quinton and Rey,
            "Jacobian Descent for Multi-Objective Optimization", 2024) and `"DualProj"` those of `torchjd[quadprog_projector]`,
            `CAGrad` those of `torchjd[cagrad]`, `NashMTL` of `torchjd[nash_mtl]`, `FairGrad` of `torchjd[fairgrad]`.
        retain_graph: whether the graph can be differentiated again; False by default.
        parallel_chunk_size: the number of losses to differentiate at once; 1 by default. None (all), TorchJD's own default,
            is faster, but runs hooks under `torch.vmap`, where most fail.
        alone: whether this process trains by itself, although a process group of several processes exists, for example left
            by an earlier run; False by default. In a LightningModule: `alone=self.trainer.world_size == 1`.

    Returns:
        The weights of the losses, of shape [losses], if the aggregator has weights; otherwise None.

    Raises:
        UnsupportedError: if TorchJD, or a package that the aggregator needs, is not installed; if there is a process group of
            more than one process, unless `alone`.
        RuleError: if the aggregator is unknown, a loss is not a scalar with a graph, or an argument is of another type.

    Example:
        >>> weight = torch.zeros(2, requires_grad=True)
        >>> losses = [weight @ torch.tensor([1.0, 0.0]), weight @ torch.tensor([-1.0, 1.0])]  # they conflict
        >>> aggregate_losses(losses, params=[weight], aggregator="PCGrad")
        tensor([2.0000, 1.5000])
        >>> weight.grad
        tensor([0.5000, 1.5000])
    """
    aggregation, autojac = _torchjd()
    chosen = _aggregator(aggregation, aggregator)
    _check_options(retain_graph, parallel_chunk_size)
    _check_losses(losses)
    has_group = not alone and torch.distributed.is_available() and torch.distributed.is_initialized()
    if has_group and torch.distributed.get_world_size() > 1:
        raise UnsupportedError(
            "aggregate_losses takes gradients around DDP, which would not average them over the processes: the replicas "
            "would drift apart. Train on one process, or add the losses up and call backward. If this process trains by itself "
            "and the process group is left from an earlier run, give alone=True"
        )
    if isinstance(params, (Tensor, str)) or not isinstance(params, (Iterable, type(None))):
        raise RuleError(f"params must be tensors, as model.parameters(), or None for all leaves, got {shown(params)}")
    leaves = None if params is None else list(params)
    targets = _leaves(losses) if leaves is None else leaves
    if not targets:
        raise RuleError("params is empty; give the parameters that share the losses, or omit it")
    for index, target in enumerate(targets):
        if not isinstance(target, Tensor):
            raise RuleError(f"params[{index}] must be a tensor, got {shown(target)}")
        if not (target.requires_grad and target.is_leaf):
            raise RuleError(f"params[{index}] must be a leaf that requires a gradient; its shape is {tuple(target.shape)}")
    autojac.backward(list(losses), inputs=targets, retain_graph=retain_graph, parallel_chunk_size=parallel_chunk_size)
    weights: Tensor | None = autojac.jac_to_grad(targets, chosen)
    return weights


def _check_options(retain_graph: Any, parallel_chunk_size: Any) -> None:
    if not isinstance(retain_graph, bool):
        raise RuleError(f"retain_graph must be True or False, got {shown(retain_graph)}")
    if parallel_chunk_size is not None and (type(parallel_chunk_size) is not int or parallel_chunk_size < 1):
        raise RuleError(f"parallel_chunk_size must be a whole number from 1, or None for all, got {shown(parallel_chunk_size)}")


def _torchjd() -> tuple[Any, Any]:
    try:
        from torchjd import aggregation, autojac
    except ImportError as error:
        raise UnsupportedError(
            "aggregate_losses needs TorchJD, which is not installed: pip install 'lightning-hooks[torchjd]'"
        ) from error
    return aggregation, autojac


def _aggregator(aggregation: Any, given: Any) -> Any:
    if isinstance(given, aggregation.Aggregator):
        return given
    classes = {
        name: kind
        for name in aggregation.__all__
        if issubclass(kind := getattr(aggregation, name), aggregation.Aggregator)
        and not name.endswith("Aggregator")  # without the abstract classes
    }
    usable_names = [name for name, kind in classes.items() if not _required_arguments(kind) and not hasattr(kind, "reset")]
    if given in usable_names:
        try:
            return classes[given]()
        except ImportError as error:
            # Append TorchJD's message, which names the missing packages and the command to install them.
            raise UnsupportedError(f"aggregator {given!r} needs more than TorchJD itself: {error}") from error
    where = f"torchjd.aggregation.{given}"
    if isinstance(given, str) and given in classes:
        if required := _required_arguments(classes[given]):
            raise RuleError(f"aggregator {given!r} needs {', '.join(required)}: give an instance, {where}({required[0]}=…)")
        raise RuleError(f"aggregator {given!r} keeps a state from step to step: give an instance, {where}(), made once")
    if isinstance(given, str):
        raise RuleError(
            f"unknown aggregator {given!r}{did_you_mean(given, classes)}; by name there are {', '.join(usable_names)}"
        )
    raise RuleError(f"aggregator must be a name or an instance of torchjd.aggregation.Aggregator, got {given!r}")


def _required_arguments(kind: type) -> list[str]:
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _check_losses(losses: Any) -> None:
    if isinstance(losses, (Tensor, str)) or not isinstance(losses, Sequence) or not losses:
        given = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else shown(losses)
        got = "none" if isinstance(losses, Sequence) and not losses else given
        raise RuleError(f"losses must be a list of at least one scalar, got {got}")
    for index, loss in enumerate(losses):
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else shown(loss)
            raise RuleError(f"losses[{index}] must be a scalar tensor, got {got}")
        if not loss.requires_grad:
            raise RuleError(f"losses[{index}] has no graph: it depends on nothing that requires a gradient")


def _leaves(losses: Sequence[Tensor]) -> list[Tensor]:
    """The leaves that the losses depend on, in depth-first order of the graph."""
    leaves: dict[int, Tensor] = {}
    visited: set[Any] = set()
    nodes: list[Any] = [torch.autograd.graph.get_gradient_edge(loss).node for loss in reversed(losses)]
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            leaves.setdefault(id(node.variable), node.variable)
        nodes.extend(next_node for next_node, _ in reversed(node.next_functions))
    return list(leaves.values())
