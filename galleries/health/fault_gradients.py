"""Faults of gradients: they do not arrive, arrive twice, are cut or grow without bound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.health.faulty_parts import Learner, Perceptron, adamw, digits, loader, sgd, stack
from galleries.health.training import Case, Expectation, Training


class DetachedEncoder(Perceptron):
    """Cuts the graph between its encoder and its head."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs).detach())


def detached_encoder(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(DetachedEncoder(), loader(*digits(), seed=seed))


class ClearedEarly(Perceptron):
    """Clears its gradients between the backward pass and the step of the optimizer."""

    def on_after_backward(self) -> None:
        self.zero_grad()


def cleared_early(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(ClearedEarly(), loader(*digits(), seed=seed))


class Noisy(Perceptron):
    """Adds noise to its gradients that is ten times as large, as a privacy that was set far too strictly does."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad += 10 * parameter.grad.square().mean().sqrt() * torch.randn_like(parameter.grad)


def noise_on_gradients(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Noisy(adamw(1e-3)), loader(*digits(), seed=seed))


class SteppedWithin(Perceptron):
    """Trains each parameter as soon as its gradient is there, and gives Lightning an optimizer that finds none."""

    def __init__(self) -> None:
        super().__init__(sgd(1e-3))
        self.within = {each: torch.optim.Adam([each], 1e-3) for each in self.parameters()}
        for parameter in self.within:
            parameter.register_post_accumulate_grad_hook(self.step)

    def step(self, parameter: Any) -> None:
        self.within[parameter].step()
        parameter.grad = None


def stepped_within(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(SteppedWithin(), loader(*digits(), seed=seed))


class SpareHead(Perceptron):
    """Computes a second head that its loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.encoder(inputs)
        self.spare(features)
        return self.head(features)


def spare_head(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(SpareHead(), loader(*digits(), seed=seed))


class TwoBranches(Learner):
    """Adds two branches, one of which is computed without a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side, self.head = stack(64, 64, 2), stack(64, 64, 2), nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            side = self.side(inputs)
        return self.head(self.main(inputs) + side)


def branch_without_graph(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(TwoBranches(), loader(*digits(), seed=seed))


def clipped_to_nothing(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Perceptron(sgd(0.1, momentum=0.9)), loader(*digits(), seed=seed), {"gradient_clip_val": 1e-4})


def deep_sigmoid(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Perceptron(sgd(0.1), depth=8, activation=nn.Sigmoid), loader(*digits(), seed=seed))


class NeverZeroed(Perceptron):
    """Optimizes manually and never calls zero_grad."""

    def __init__(self) -> None:
        super().__init__(sgd(0.02))
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        self.manual_backward(loss)
        self.optimizers().step()


def never_zeroed(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(NeverZeroed(), loader(*digits(), seed=seed))


class OneNeverZeroed(Perceptron):
    """Has an optimizer for its encoder and one for its head, of which it clears the first only."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.encoder.parameters(), 0.05), torch.optim.SGD(self.head.parameters(), 0.05)]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        encoder, head = self.optimizers()
        encoder.zero_grad()
        loss = self.loss(batch)
        self.log("train_loss", loss)
        self.manual_backward(loss)
        encoder.step()
        head.step()


def one_never_zeroed(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(OneNeverZeroed(), loader(*digits(), seed=seed))


class Recurrent(Learner):
    """Reads an image row by row, five times over, with a plain recurrent layer whose state grows."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.recurrent, self.head = nn.RNN(8, 64, batch_first=True, nonlinearity="relu"), nn.Linear(64, 10)
        with torch.no_grad():
            self.recurrent.weight_hh_l0.copy_(1.1 * torch.eye(64))

    def forward(self, inputs: Tensor) -> Tensor:
        _, last = self.recurrent(inputs.view(-1, 8, 8).repeat(1, 5, 1))
        return self.head(last[0])


def exploding_recurrence(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Recurrent(), loader(*digits(), seed=seed))


def hook_returns_zero(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Perceptron(adamw(weight_decay=0.0))
    model.encoder[2].weight.register_hook(torch.zeros_like)
    return Case(model, loader(*digits(), seed=seed))


class Damped(Perceptron):
    """Scales the gradient that reaches its encoder by 1e-7, as a coupling that was tuned for another loss may."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.encoder(inputs)
        return self.head(hidden.detach() + 1e-7 * (hidden - hidden.detach()))


def damped(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Damped(sgd(0.1, momentum=0.9)), loader(*digits(), seed=seed))


class CutLater(Perceptron):
    """Detaches its encoder from step 80 on."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.encoder(inputs)
        return self.head(hidden.detach() if self.global_step >= 80 else hidden)


def cut_later(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(CutLater(sgd(0.05, momentum=0.9)), loader(*digits(), seed=seed))


class Argmax(Learner):
    """Chooses codes by the index of the nearest one, through which no gradient flows."""

    def __init__(self) -> None:
        super().__init__(adamw())
        self.encoder, self.codes, self.head = stack(64, 64, 2), nn.Embedding(32, 64), nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        nearest = torch.cdist(self.encoder(inputs), self.codes.weight).argmin(1)
        return self.head(self.codes(nearest))

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(self(inputs), labels)


def codes_by_argmin(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Argmax(), loader(*digits(), seed=seed))


TRAININGS = [
    Training(
        "detached-encoder",
        "gradients",
        detached_encoder,
        150,
        "set",
        Expectation("fact", ("NoGradient", "UnchangedParameter"), "encoder*", "GradientCut"),
        "A detach() between encoder and head leaves the encoder without gradients.",
    ),
    Training(
        "branch-without-graph",
        "gradients",
        branch_without_graph,
        150,
        "held",
        Expectation("fact", ("NoGradient", "UnchangedParameter"), "side*", "GradientCut"),
        "One of two branches is computed under no_grad.",
    ),
    Training(
        "noise-on-gradients",
        "gradients",
        noise_on_gradients,
        100,
        "set",
        Expectation("pattern", ("GradientsNoisy",)),
        "Code adds normal noise to each gradient before the step, ten times as large as the gradient.",
    ),
    Training(
        "clipped-to-nothing",
        "gradients",
        clipped_to_nothing,
        200,
        "set",
        Expectation("pattern", ("ClippingAlways", "UpdateTooSmall"), cause="ClippingStopsLearning"),
        "Gradients are clipped to a norm of 1e-4 in front of SGD.",
    ),
    Training(
        "deep-sigmoid",
        "gradients",
        deep_sigmoid,
        200,
        "held",
        Expectation("pattern", ("VanishingGradient", "LossConstant", "ConstantOutput"), "encoder*"),
        "Eight sigmoid layers let almost no gradient through to the first.",
    ),
    Training(
        "gradients-never-zeroed",
        "gradients",
        never_zeroed,
        200,
        "set",
        Expectation(
            "pattern", ("GradientsRepeat", "LossDiverged", "ExplodingGradient", "UpdateTooLarge"), cause="GradientsNotCleared"
        ),
        "Manual optimization never calls zero_grad, so that gradients add up.",
    ),
    Training(
        "one-optimizer-never-zeroed",
        "gradients",
        one_never_zeroed,
        150,
        "set",
        Expectation("fact", ("GradientsKept",), "head*", "GradientsNotCleared"),
        "Of two optimizers the gradients of one are never cleared.",
    ),
    Training(
        "exploding-recurrence",
        "gradients",
        exploding_recurrence,
        150,
        "held",
        Expectation(
            "pattern",
            (
                "ExplodingGradient",
                "GradientSpike",
                "LossDiverged",
                "LossSpike",
                "NonFinite",
                "UpdateTooLarge",
                "MassiveActivation",
                "PoorInitialization",
            ),
            cause="InitializationTooLarge",
        ),
        "A recurrent layer of 40 steps begins with a factor of 1.1, without clipping.",
    ),
    Training(
        "hook-returns-zero",
        "gradients",
        hook_returns_zero,
        150,
        "set",
        Expectation("fact", ("UnchangedParameter", "NoGradient"), "encoder.2*", "GradientCut"),
        "A hook on one weight returns a gradient of zeros.",
    ),
    Training(
        "damped-encoder",
        "gradients",
        damped,
        200,
        "held",
        Expectation("pattern", ("VanishingGradient", "UpdateTooSmall", "LostUpdates"), "encoder*"),
        "The gradient that reaches the encoder is scaled by 1e-7 in front of SGD.",
    ),
    Training(
        "cut-later",
        "gradients",
        cut_later,
        200,
        "set",
        Expectation("fact", ("NoGradient", "UnchangedParameter"), "encoder*", "GradientCut", onset=80),
        "From step 80 on, the encoder is detached.",
    ),
    Training(
        "codes-by-argmin",
        "gradients",
        codes_by_argmin,
        150,
        "held",
        Expectation("fact", ("NoGradient", "UnchangedParameter"), "encoder*", "GradientCut"),
        "Codes are chosen by an index, through which no gradient reaches the encoder.",
    ),
    Training(
        "cleared-early",
        "gradients",
        cleared_early,
        100,
        "set",
        Expectation("fact", ("ClearedBeforeStep", "ZeroGradients"), cause="GradientsClearedEarly"),
        "Gradients are cleared between the backward pass and the step.",
    ),
    Training(
        "step-within-backward",
        "gradients",
        stepped_within,
        100,
        "held",
        Expectation("pattern", ("GradientsConsumed",)),
        "Each parameter is trained within the backward pass, as soon as it has a gradient: meant, and worth a note.",
    ),
    Training(
        "spare-head",
        "gradients",
        spare_head,
        100,
        "set",
        Expectation("pattern", ("UnusedOutput",), "spare*"),
        "A second head is computed, and no loss uses it.",
    ),
]
