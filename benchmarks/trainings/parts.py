"""The parts of which families build their trainings: activations, initialisations, norms, losses, a learner, loaders."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.trainings.optimizers import configured, is_manual
from benchmarks.trainings.spec import Spec, seed_of
from galleries.health.training import Case

ACTIVATIONS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "relu": nn.ReLU,
    "leaky": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "hardswish": nn.Hardswish,
}

INITIALISATIONS: Final[Mapping[str, Callable[[Tensor], Any] | None]] = {
    "default": None,
    "kaiming": nn.init.kaiming_normal_,
    "xavier": nn.init.xavier_uniform_,
    "orthogonal": nn.init.orthogonal_,
    "truncated": lambda weight: nn.init.trunc_normal_(weight, std=1 / math.sqrt(weight[0].numel())),
}


def initialise(module: nn.Module, name: str) -> None:
    """Give linear layers and convolutions other weights, and biases of 0; "default" leaves both."""
    fill = INITIALISATIONS[name]
    if fill is None:
        return
    for each in module.modules():
        if isinstance(each, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            fill(each.weight)
            if each.bias is not None:
                nn.init.zeros_(each.bias)


def seeded(spec: Spec) -> None:
    """Seed the global generator, from which weights, dropouts and noise of a repetition are drawn."""
    torch.manual_seed(seed_of(spec.seed, spec.repeat, "weights"))


def dropouts(spec: Spec) -> list[nn.Module]:
    """A dropout, if the training has any."""
    return [nn.Dropout(spec.dropout)] if spec.dropout else []


class Residual(nn.Module):
    """A branch beside the identity.

    Args:
        branch: the branch.
        shortcut: what takes the place of the identity.
        drop: how often the branch is skipped in training (stochastic depth).
    """

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, drop: float = 0.0) -> None:
        super().__init__()
        self.branch, self.shortcut, self.drop = branch, shortcut, drop

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and self.drop and float(torch.rand(())) < self.drop:
            return inputs
        return (inputs if self.shortcut is None else self.shortcut(inputs)) + self.branch(inputs)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross entropy of the last dimension."""
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy with smoothed labels."""
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=0.1)


def one_against_all(logits: Tensor, labels: Tensor) -> Tensor:
    """The binary cross entropy of each class."""
    return functional.binary_cross_entropy_with_logits(logits, functional.one_hot(labels, logits.shape[-1]).to(logits))


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    """The focal loss with an exponent of 2."""
    chosen = functional.log_softmax(logits, -1).gather(-1, labels[..., None])
    return -((1 - chosen.exp()) ** 2 * chosen).mean()


CLASSIFICATION: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "cross-entropy": cross_entropy,
    "smoothed": smoothed,
    "one-against-all": one_against_all,
    "focal": focal,
    "multi-margin": functional.multi_margin_loss,
}
REGRESSION: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "squared": functional.mse_loss,
    "absolute": functional.l1_loss,
    "huber": functional.huber_loss,
    "smooth": functional.smooth_l1_loss,
    "log-cosh": lambda outputs, targets: (outputs - targets).cosh().log().mean(),
}


class Learner(LightningModule):
    """Learns pairs of inputs and targets.

    Args:
        spec: of the training.
        model: maps inputs to predictions.
        criterion: the loss of predictions and targets.
    """

    def __init__(self, spec: Spec, model: nn.Module, criterion: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.spec, self.model, self.criterion = spec, model, criterion
        self.automatic_optimization = not is_manual(spec)

    def forward(self, *inputs: Tensor) -> Any:
        return self.model(*inputs)

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        return self.criterion(self(inputs), targets)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        if not self.automatic_optimization:
            self.take_steps(loss)
        return loss

    def take_steps(self, loss: Tensor) -> None:
        """Take a step of each optimizer by the gradients of one loss, and one of each schedule."""
        optimizers: Any = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        self.step_schedules()

    def step_schedules(self) -> None:
        """Take a step of each schedule."""
        schedulers: Any = self.lr_schedulers() or []
        for scheduler in schedulers:
            scheduler.step()

    def held(self, part: nn.Module) -> Iterator[nn.Parameter]:
        """The parameters of a part of the module that an optimizer gets."""
        return (parameter for parameter in part.parameters() if parameter.requires_grad)

    def configure_optimizers(self) -> Any:
        return configured(self.spec, self.held(self))


def split(samples: Tensor, spec: Spec, purpose: str) -> Tensor:
    """The indices of 1,400 samples to train on, or of the others, the same for all repetitions of a training."""
    order = torch.randperm(len(samples), generator=spec.source("split", of_task=True))
    return order[:1400] if purpose == "train" else order[1400:]


def loader(spec: Spec, *tensors: Tensor) -> DataLoader[Any]:
    """The batches of a training, in an order that depends on its repetition."""
    source = spec.source("order")
    return DataLoader(TensorDataset(*tensors), batch_size=spec.batch, shuffle=True, drop_last=True, generator=source)


def learned(
    spec: Spec, model: nn.Module, criterion: Callable[[Any, Tensor], Tensor], *tensors: Tensor, learner: type[Learner] = Learner
) -> Case:
    """The case of a model that gets the drawn initialisation and learns the samples of `tensors`.

    Args:
        spec: of the training.
        model: the model.
        criterion: as `Learner` takes it.
        tensors: what batches consist of.
        learner: the class of the module.
    """
    initialise(model, spec.initialisation)
    return Case(learner(spec, model, criterion), loader(spec, *tensors))


def margin(loss: Tensor | float, constant: Tensor | float) -> float:
    """The share of the loss of the best constant prediction that a model has removed; 1 is the best, 0 is no better.

    A loss that is not finite gives minus infinity.

    Example:
        >>> margin(0.5, 2.0), margin(math.nan, 2.0)
        (0.75, -inf)
    """
    share = 1 - float(loss) / float(constant)
    return share if math.isfinite(share) else -math.inf


def accuracy_margin(logits: Tensor, labels: Tensor) -> float:
    """The share of the errors of guessing the most frequent class that a model does not make."""
    errors = (logits.argmax(-1) != labels).double().mean()
    guessed = 1 - labels.flatten().bincount().max() / labels.numel()
    return margin(errors, guessed) if bool(logits.isfinite().all()) else -math.inf


def predicted(module: LightningModule, *inputs: Tensor) -> Any:
    """What a finished model gives in evaluation, in the number format of its weights."""
    module.eval()
    dtype = next(each.dtype for each in module.parameters() if each.is_floating_point())
    with torch.no_grad():
        return module(*(each.to(dtype) if each.is_floating_point() else each for each in inputs))
