"""Facts about a training that no tensor shows: its optimizers at a step, and the structure of its model. Plain values only."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hooks.codec import row


@dataclass(frozen=True)
class GroupFacts:
    """One parameter group of an optimizer.

    Args:
        lr: the current learning rate; None if the optimizer has none, or keeps it on a device.
        weight_decay: likewise.
        params: the names of its parameters in the model.
        strangers: the number of its parameters that are not in the model.
    """

    lr: float | None
    weight_decay: float | None
    params: tuple[str, ...]
    strangers: int = 0


@dataclass(frozen=True)
class OptimizerFacts:
    """One optimizer.

    Args:
        type: the name of its class.
        groups: its parameter groups.
    """

    type: str
    groups: tuple[GroupFacts, ...]


@dataclass(frozen=True)
class Sighting:
    """Something that a lookout has seen of the code around the model, such as a gradient that was never cleared.

    Args:
        kind: what it is, as the rule on it calls it.
        text: in words, with its numbers and without a full stop.
        rows: the names of the modules or parameters that it concerns; empty for the whole run.
        line: the line of the user's code, `train.py:31 in fit`; empty if it is not known.
        is_fact: whether it is never right, so that a rule on a pattern needs no harm to tell it.
        measured: the number that was measured.
        threshold: the number that it was compared with.
        at: the step that it is about; None if it is about the step at which it is told.

    Example:
        >>> Sighting("kept", "Adam steps with the gradients of the step before in its own", line="train.py:31 in fit").rows
        ()
    """

    kind: str
    text: str
    rows: tuple[str, ...] = ()
    line: str = ""
    is_fact: bool = True
    measured: float = 1.0
    threshold: float = 0.0
    at: int | None = None


@dataclass(frozen=True)
class StepFacts:
    """How one step trained.

    Args:
        optimizers: the optimizers of the fit; empty outside training, and in a plain loop without an optimizer.
        loss_scale: the factor of the loss; 1.0 without a loss scaler, None if only the device knows the number.
        frozen: the names of the parameters without `requires_grad`.
        evaluating: the names of the modules in evaluation mode.
        precision: as Lightning calls it, for example `16-mixed`; None in a plain loop.
        accumulate: the number of batches in one step of the optimizer; None in a plain loop.
        last_step: the number of steps after which the fit ends; None if nobody knows.
        apart: the names of the parameters that differed between ranks when a `HealthMonitor` compared them last.
        written: the names of the frozen parameters whose memory code has written to since the step before that was watched.
        validating: the names of the modules that were in training mode in the last validation that a `HealthMonitor` saw; None
            before the first.
        follows_metric: whether a scheduler sets a learning rate by a metric, as `ReduceLROnPlateau` does.
        looked_for: the kinds of sightings that lookouts look for in this run.
        sightings: what they have seen, as far as it still holds.

    Example:
        >>> StepFacts((OptimizerFacts("SGD", (GroupFacts(0.1, 0.0, ("weight",)),)),)).optimizers[0].groups[0].lr
        0.1
    """

    optimizers: tuple[OptimizerFacts, ...] = ()
    loss_scale: float | None = 1.0
    frozen: tuple[str, ...] = ()
    evaluating: tuple[str, ...] = ()
    precision: str | None = None
    accumulate: int | None = None
    last_step: int | None = None
    apart: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    validating: tuple[str, ...] | None = None
    follows_metric: bool = False
    looked_for: tuple[str, ...] = ()
    sightings: tuple[Sighting, ...] = ()


@row
@dataclass(frozen=True)
class ModuleFacts:
    """One module of a model.

    Args:
        name: the dotted name; empty for the model itself.
        type: the name of its class.
        role: what the class is for: `activation`, `attention`, `convolution`, `dropout`, `embedding`, `linear`, `loss`, `norm`,
            `recurrent`; `container` for a module with children that is none of these, and `other`.
        drop_rate: the share of elements that it sets to 0 in training; None for a module without such a share.
    """

    name: str
    type: str
    role: str
    drop_rate: float | None = None


@row
@dataclass(frozen=True)
class ParameterFacts:
    """One parameter of a model.

    Args:
        name: the dotted name, the first one if the parameter has several.
        module: the name of the module that holds it.
        shape: its shape, before any sharding.
        dtype: for example `float32`.
        others: its other names.
    """

    name: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Structure:
    """The modules and parameters of a model when its training began, in the order of their definition."""

    modules: tuple[ModuleFacts, ...] = ()
    parameters: tuple[ParameterFacts, ...] = ()
