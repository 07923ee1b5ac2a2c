"""The symptom of every faulty training on one rank: what must be true of its numbers for its fault to be real."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from galleries.health.fault_buffers import PRETRAINED
from galleries.health.witness import Witness


def stalls(witness: Witness, above: float = 2.2) -> bool:
    """The loss of ten classes never falls far below that of a guess."""
    return witness.end() > above


def jumps(witness: Witness, at: int, times: float) -> bool:
    """The loss rises within five steps of `at`."""
    return max(witness.losses[at : at + 5]) > times * witness.mean(at - 10, at)


def without_gradient(witness: Witness, prefix: str, first: int = 0) -> bool:
    found = witness.gradients(prefix, first)
    return bool(found) and all(gradient is None for gradient in found)


def dead(witness: Witness, name: str, share: float, first: int = 0) -> bool:
    """At least this share of units is dead whenever it is measured."""
    return min(row.dead for row in witness.rows(name, first)) >= share


def shrinks(witness: Witness, small: str, large: str, times: float, step: int = 50) -> bool:
    """The gradient of one parameter is smaller than that of another."""
    return (witness.parameters[step, small].gradient or 0) * times < (witness.parameters[step, large].gradient or 0)


def grown(witness: Witness, name: str, step: int) -> float:
    return witness.parameters[step, name].norm / witness.parameters[0, name].norm


def wider(witness: Witness, name: str, others: Sequence[str], times: float) -> bool:
    """The first output of a module is larger, for its input, than that of each of the others."""
    first = witness.outputs[0, name]
    return all(first.rms / first.incoming > times * witness.outputs[0, o].rms / witness.outputs[0, o].incoming for o in others)


def evaluates(witness: Witness) -> bool:
    norms = [module for module in witness.module.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    return bool(norms) and not any(module.training for module in norms)


def batches(witness: Witness, name: str) -> int:
    """The number of batches by which the statistics of a norm have moved in the training."""
    return int(witness.module.get_buffer(f"{name}.num_batches_tracked")) - PRETRAINED


def averaged(witness: Witness, buffer: str) -> Tensor:
    """A buffer of the averaged copy, which is not a part of the model."""
    return witness.module.averages[0].get_buffer(buffer)


def lags(witness: Witness, name: str) -> bool:
    """Whether an average of the encoder ends near the first weights, which lie within the bounds of their random numbers."""
    first, last = witness.module.averages[0].get_parameter(name), witness.module.encoder.get_parameter(name).detach()
    return float(first.abs().max()) < 1.01 * first.shape[1] ** -0.5 < float(last.abs().max())


LINEAR = [f"encoder.{index}" for index in (2, 6, 8)]

SYMPTOMS: dict[str, Callable[[Witness], bool]] = {
    # loss
    "softmax-twice": lambda w: w.end() > 1.46,
    "each-with-each": lambda w: w.end() > 0.9 * w.mean(0, 20),
    "sum-for-mean": lambda w: max(w.losses) > 2 * w.losses[0] and w.end() > 140,
    "targets-times-million": lambda w: w.end() > 0.7 * w.mean(0, 20) and w.losses[0] > 1e11,
    "contrast-without-negatives": lambda w: w.outputs[60, "projector"].spread < 0.05,
    "softmax-over-batch": lambda w: w.end() > 1.2,
    "sign-forgotten": lambda w: w.end() < -1e4,
    # buffers
    "frozen-norms-back-in-training": lambda w: w.change("encoder.0.weight") == 0 and batches(w, "encoder.1") == 110,
    "average-of-integers": lambda w: not averaged(w, "places.index").equal(w.module.get_buffer("network.places.index")),
    "average-lags": lambda w: lags(w, "0.weight") and w.end() < 0.5,
    "average-without-statistics": lambda w: bool((averaged(w, "norm.running_var") == 1).all()) and w.end() < 0.5,
    "target-never-synchronised": lambda w: grown(w, "target.1.weight", 390) == 1 != grown(w, "online.1.weight", 390),
    "teacher-trained": lambda w: w.change("teacher.1.weight") > 0 and not w.module.teacher.training,
    # gradients
    "detached-encoder": lambda w: without_gradient(w, "encoder") and w.end() > 1.9,
    "cleared-early": lambda w: w.change("encoder.0.weight") == 0 and w.change("head.weight") == 0,
    "step-within-backward": lambda w: without_gradient(w, "encoder") and grown(w, "encoder.2.weight", 90) > 1.01,
    "spare-head": lambda w: without_gradient(w, "spare") and w.end() < 1.0,
    "branch-without-graph": lambda w: without_gradient(w, "side"),
    "clipped-to-nothing": lambda w: stalls(w) and w.change("encoder.0.weight") < 1e-4,
    "deep-sigmoid": lambda w: shrinks(w, "encoder.0.weight", "head.weight", 1e4) and stalls(w),
    "noise-on-gradients": lambda w: w.end() > 0.5,
    "gradients-never-zeroed": lambda w: w.gradients("encoder.0.weight", 150)[0] > 10 * w.gradients("encoder.0.weight")[0],
    "one-optimizer-never-zeroed": lambda w: w.gradients("head.weight", 20)[0] > 5 * w.gradients("head.weight")[0],
    "clipped-before-backward": lambda w: min(w.gradients("encoder.0.weight")[:3]) > 0.1,
    "clipped-after-step": lambda w: w.change("encoder.0.weight") > 0 and None not in w.gradients("encoder"),
    "accumulation-not-divided": lambda w: max(w.losses) > 3 and stalls(w),
    "generator-leaves-gradients": lambda w: w.module.left[0] == 0 < min(w.module.left[1:]),
    "exploding-recurrence": lambda w: w.gradients("recurrent.weight_hh")[0] > 1e3,
    "hook-returns-zero": lambda w: w.change("encoder.2.weight") == 0 and w.change("encoder.0.weight") > 0,
    "damped-encoder": lambda w: shrinks(w, "encoder.4.weight", "head.weight", 1e6) and w.change("encoder.0.weight") < 1e-6,
    "cut-later": lambda w: without_gradient(w, "encoder", 80) and None not in w.gradients("encoder")[:40],
    "codes-by-argmin": lambda w: without_gradient(w, "encoder") and stalls(w),
    # updates
    "rate-times-five": lambda w: w.parameters[50, "blocks.0.mlp.0.weight"].change > 0.005,
    "rate-times-five-of-sgd": lambda w: max(w.losses) > 5 and stalls(w),
    "rate-times-hundred": lambda w: max(w.losses) > 100 and w.end() > 2.2,
    "rate-far-too-low": lambda w: 0 < w.change("encoder.0.weight") < 1e-7 and stalls(w),
    "rate-too-low-for-its-steps": lambda w: 0.01 < w.mean(0, 50) - w.mean(150, 200) < 0.2 and w.mean(150, 200) > 2,
    "rate-spike": lambda w: jumps(w, 100, 100) and w.rates[99] != w.rates[100] != w.rates[103],
    "one-layer-runs-away": lambda w: grown(w, "encoder.2.weight", 100) > 10 > 2 > grown(w, "encoder.0.weight", 100),
    "one-layer-stands-still": lambda w: w.change("encoder.2.weight") < 1e-6 < 1e-4 < w.change("encoder.0.weight"),
    "decay-of-ten": lambda w: grown(w, "encoder.0.weight", 50) < 0.9 and w.end() > 1,
    "large-eps": lambda w: w.change("encoder.0.weight") < 1e-4 and w.end() > 0.99 * w.mean(0, 20),
    "update-undone": lambda w: w.change("encoder.2.weight") == 0 and w.gradients("encoder.2.weight")[0] > 0,
    "weights-shrunk-by-code": lambda w: grown(w, "encoder.2.weight", 50) < 0.3 and w.end() > 1,
    "weights-drawn-anew": lambda w: grown(w, "encoder.2.weight", 110) > 10 and jumps(w, 100, 5),
    # activations
    "one-head-dead": lambda w: {row.dead for row in w.rows("blocks.1.attention.value")} == {0.25},
    "relu-layer-dead": lambda w: dead(w, "encoder.5", 1.0) and stalls(w),
    "half-of-the-units-dead": lambda w: dead(w, "encoder.3", 0.5) and w.end() < 0.5,
    "layer-dies-later": lambda w: dead(w, "encoder.3", 1.0, 80) and w.outputs[70, "encoder.3"].dead < 0.3 and jumps(w, 80, 2),
    "tanh-of-huge-inputs": lambda w: min(row.saturated for row in w.rows("encoder.1")) > 0.9,
    "tanh-of-huge-weights": lambda w: min(row.saturated for row in w.rows("encoder.5")) > 0.8,
    "tanh-of-huge-biases": lambda w: min(row.saturated for row in w.rows("encoder.3")) > 0.99 and stalls(w),
    "dropout-of-almost-all": lambda w: dead(w, "encoder.5", 0.5) and stalls(w),
    "one-expert-takes-all": lambda w: sum(all(g is None for g in w.gradients(f"experts.{i}.")) for i in range(8)) == 7,
    "one-massive-unit": lambda w: w.outputs[50, "encoder.2"].top > 5 * w.outputs[50, "encoder.2"].rms > 50,
    # initialisation
    "layer-three-times-too-wide": lambda w: wider(w, "encoder.4", LINEAR, 2.0),
    "layer-thirty-times-too-wide": lambda w: wider(w, "encoder.4", LINEAR, 20.0),
    "head-tied-to-embedding": lambda w: w.losses[0] > 15 and w.module.head.weight is w.module.embedding.weight,
    "all-layers-far-too-small": lambda w: w.outputs[50, "encoder.8"].spread < 0.01 and stalls(w),
    "all-layers-too-large": lambda w: w.losses[0] > 100,
    "embedding-far-too-large": lambda w: w.outputs[100, "embedding"].rms > 50 * w.outputs[100, "position"].rms,
    "layers-of-zeros": lambda w: dead(w, "encoder.5", 1.0) and dead(w, "encoder.3", 1.0) and stalls(w),
    "units-all-alike": lambda w: len({round(x, 4) for x in w.module.encoder[2].bias.tolist()}) == 1 and w.end() > 1.5,
    # optimizer
    "group-forgotten": lambda w: "norm.weight" not in w.held[0] and w.change("norm.weight") == 0 and w.strangers[0] == 0,
    "optimizer-writes-copy": lambda w: w.change("encoder.2.weight") == 0 and w.gradients("encoder.2.weight")[0] > 0,
    "moments-not-restored": lambda w: w.losses[0] < 0.5 and w.rates[0][0] == 1e-2 > 1.1 * w.rates[1][0],
    "rate-set-again": lambda w: w.rates[79][0] == 1e-3 and w.rates[80][0] == 1e-2,
    "encoder-forgotten": lambda w: w.held[0] == {"head.weight", "head.bias"} and w.change("encoder.0.weight") == 0,
    "copy-optimized": lambda w: w.strangers[0] == 6 and w.change("encoder.0.weight") == 0,
    "stranger-beside": lambda w: w.strangers[0] == 2 and "encoder.0.weight" in w.held[0],
    "head-replaced": lambda w: w.strangers[59] == 0 and w.strangers[61] == 2 and "head.weight" not in w.held[61],
    "rate-of-zero": lambda w: w.rates[-1] == [0.0] and w.change("encoder.0.weight") == 0,
    "schedule-ends-early": lambda w: w.rates[59] != [0.0] == w.rates[60] and w.parameters[70, "head.weight"].change == 0,
    "group-of-zero": lambda w: w.rates[-1][0] == 0 and w.change("encoder.0.weight") == 0 < w.change("head.weight"),
    "schedule-by-epoch": lambda w: max(w.rates[160]) < 1e-2 and w.mean(0, 50) > 2.2,
    "schedule-of-few-steps": lambda w: 0 < max(w.rates[30]) < 1e-10 and stalls(w, 1.5),
    "warm-up-without-end": lambda w: 0 < max(w.rates[-1]) < 1e-4 and stalls(w),
    "schedule-of-batches": lambda w: w.rates[-1] == [0.0] != w.rates[20] and stalls(w, 0.5),
    "betas-swapped": lambda w: w.end() > 1 and max(w.losses[20:]) > w.losses[0],
    "frozen-layer-moves": lambda w: not w.module.encoder[2].weight.requires_grad and grown(w, "encoder.2.weight", 50) < 0.9,
    # data
    "pixels-to-255": lambda w: w.outputs[0, "encoder.0"].incoming > 50 and max(w.losses) > 1000,
    "features-of-ten-thousand": lambda w: w.outputs[0, "encoder.0"].incoming > 5000 and w.end() > 100,
    "one-feature-in-other-units": lambda w: w.outputs[0, "encoder.0"].incoming > 200,
    "features-far-from-zero": lambda w: w.outputs[0, "encoder.0"].incoming > 49,
    "some-labels-shuffled": lambda w: 0.8 < w.end() < 2,
    "labels-of-other-rows": stalls,
    "targets-constant": lambda w: w.outputs[190, "head"].spread < 0.1,
    "labels-of-one-class": lambda w: w.end() < 1e-3,
    "absurd-sample": lambda w: jumps(w, 49, 3) and jumps(w, 99, 3),
    "infinite-batch": lambda w: w.finite() == 50,
    "inputs-of-zeros": lambda w: w.outputs[60, "encoder.0"].spread < 1e-6 and stalls(w),
    "zero-batches": lambda w: jumps(w, 80, 2) and w.outputs[80, "encoder.0"].spread < 1e-6 and stalls(w),
    "unreadable-file": lambda w: (
        w.module.sizes[29] == w.module.sizes[59] == 0 < w.module.sizes[30] and w.losses[59] > w.losses[58]
    ),
    "silent-sensor": lambda w: float(w.module.largest[5]) == 0 < float(w.module.largest[4]),
    "sensor-at-its-limit": lambda w: float(w.module.largest[2]) == 5,
    "same-batch-again": lambda w: w.losses[-1] < 0.1 * w.mean(70, 80),
    "same-numbers-each-epoch": lambda w: w.module.sums[:10] == w.module.sums[10:20],
    "workers-read-all": lambda w: w.module.sums[0:40:2] == w.module.sums[1:40:2],
    "same-few-batches": lambda w: w.module.sums[:4] == w.module.sums[4:8],
    "targets-ignored": lambda w: set(w.losses) == {0.0},
    "end-token-ignored": lambda w: 0 not in w.module.targets and w.end() < 1.5,
    "tokens-shifted-twice": lambda w: 1.5 < w.end() < w.losses[0],
    "labels-drawn-apart": lambda w: w.end() > 2.25,
    "tokens-not-shifted": lambda w: w.end() < 0.1,
    "waits-for-data": lambda w: sorted(w.module.waits)[35] > 0.09,
    "classes-numbered-again": lambda w: w.mean(80, 90) > 3 * w.mean(70, 80),
    "sorted-by-label": lambda w: max(w.losses[5:]) > 3 * w.losses[0],
    # numerics
    "nan-planted": lambda w: w.finite() == 60,
    "log-of-zero": lambda w: w.losses[40] == math.inf,
    "root-of-zero": lambda w: w.finite() == 31 and math.isnan(w.gradients("encoder.0.weight", 30)[0]),
    "half-adam": lambda w: w.finite() == 1 and w.parameters[0, "encoder.0.weight"].gradient is not None,
    "half-overflows-to-zero": lambda w: dead(w, "rescale", 1.0, 70) and w.outputs[60, "rescale"].rms > 0.9,
    "half-scores-overflow": lambda w: w.finite() == 50,
    "half-underflows": lambda w: set(w.gradients("encoder")) == {0.0} and w.gradients("head.bias")[0] > 0,
    "updates-lost": lambda w: w.change("encoder.0.bias") == 0 < w.gradients("encoder.0.bias")[0] and stalls(w),
    "scaler-skips-for-ever": lambda w: w.change("encoder.0.weight") == 0 and math.isnan(w.gradients("encoder.2.weight")[0]),
    # structure
    "batch-norm-of-two": lambda w: w.end() > 1.8,
    "left-in-evaluation": evaluates,
    "validated-in-training-mode": lambda w: w.module.apart > 0.1,
    "dropout-not-told-the-mode": lambda w: w.module.apart > 0.1,
    "norms-in-evaluation": lambda w: evaluates(w) and float(w.module.encoder[1].running_mean.norm()) == 0,
    "statistics-stand-still": lambda w: float(w.module.features[1].running_mean.norm()) == 0 and w.end() < 0.3,
    "statistics-of-last-batch": lambda w: max(w.module.shares[1:]) < 0.06,
    "statistics-lost": lambda w: bool(w.module.features[4].running_var.isnan().all()) and w.end() < 0.3,
    "padding-mask-inverted": lambda w: w.mean(40, 60) > 1.35 and w.end() > 1.35,
    "sees-the-future": lambda w: w.end() < 0.5,
    "causal-mask-inverted": lambda w: w.end() < 0.5,
    "block-times-n": lambda w: w.module.features[1] is w.module.features[4],
    "vectors-frozen": lambda w: not w.module.words.weight.requires_grad and stalls(w, 0.6),
    "blocks-in-a-plain-list": lambda w: all(each.grad is not None for each in w.module.blocks[0].parameters()),
    "tie-lost": lambda w: w.module.head.weight is not w.module.letters.weight and w.change("head.weight") > 0,
    "tied-by-mistake": lambda w: w.module.encoder[2] is w.module.encoder[4],
    "stops-being-called": lambda w: (70, "refine.0") in w.outputs and (80, "refine.0") not in w.outputs,
    "never-called": lambda w: (0, "context.0") not in w.outputs and without_gradient(w, "context"),
    "discriminator-wins": lambda w: w.outputs[190, "discriminator.1"].spread > 0 and abs(w.end()) < 1e-3,
}
"""By the name of the training."""
