"""Explains each statistic to the user of the page: its meaning, usual values, and what to do about unusual ones."""

from __future__ import annotations

from typing import Final

EXPLANATIONS: Final[dict[str, dict[str, str]]] = {
    "count": {
        "what": "How many elements were measured in the step, over all calls, micro-batches and processes.",
        "usual": "The same number at every step, except for a last, smaller batch.",
        "do": "0 or a gap: the module was not called, or the parameter had no gradient. Compare with the neighbours.",
    },
    "mean": {
        "what": "The average of all elements.",
        "usual": "Near 0 for gradients and parameters. Behind a ReLU it is positive.",
        "do": "A mean that drifts while the standard deviation stays points to a growing bias. Look at the layer's bias.",
    },
    "std": {
        "what": "The standard deviation of all elements around their mean: the root of the mean squared deviation.",
        "usual": "Activations: of the same order from layer to layer, about 0.1 to 10.",
        "do": "If it shrinks or grows from layer to layer, look at initialisation and normalisation.",
    },
    "rms": {
        "what": "The root of the mean square: the size of a typical element.",
        "usual": "Comparable between layers of different width, unlike the norm.",
        "do": "Steady growth of activations or parameters: consider weight decay or a lower learning rate.",
    },
    "norm": {
        "what": "The Euclidean norm: the root of the sum of squares.",
        "usual": "Of gradients: falls quickly at first, then slowly. It grows with the root of the number of elements.",
        "do": "Jumps of more than a factor of 10: look at the batch and the learning rate, consider clipping.",
    },
    "abs_mean": {
        "what": "The average magnitude of the elements.",
        "usual": "Of gradients above 1e-7.",
        "do": "Below 1e-7 over many steps the gradient vanishes: look at the layers between this one and the loss.",
    },
    "min": {
        "what": "The least element.",
        "usual": "Of the same order as the greatest, with a negative sign; 0 behind a ReLU.",
        "do": "A single extreme element shows here first. Look at the histogram.",
    },
    "max": {
        "what": "The greatest element.",
        "usual": "A few standard deviations.",
        "do": "More than 100 standard deviations: an outlier channel, or the way to an overflow in half precision.",
    },
    "abs_max": {
        "what": "The greatest magnitude.",
        "usual": "A few standard deviations; in float16 well below 65,504.",
        "do": "Growth towards the largest number of the dtype ends in infinities. Lower the learning rate or clip.",
    },
    "zero_fraction": {
        "what": "The share of elements that are exactly 0.",
        "usual": "About 0.5 behind a ReLU; 0 elsewhere, except for embeddings and masks.",
        "do": "Near 1 the layer is dead: look at its bias, at the learning rate, at the initialisation.",
    },
    "underflow_fraction": {
        "what": "The share of elements whose magnitude is above 0 and below the smallest normal number of the dtype.",
        "usual": "0, or a few per cent in float16.",
        "do": "More than 10 %: use a loss scaler, or bfloat16.",
    },
    "nonfinite": {
        "what": "How many elements are NaN or infinite.",
        "usual": "0. With a loss scaler, single steps at which it overflows are normal and are skipped.",
        "do": "Find the first step and, in the order of execution, the first layer; look at its input there.",
    },
    "ratio": {
        "what": "The norm of the update divided by the norm of the parameter; 0 where both are 0.",
        "usual": "About 1e-3.",
        "do": "Above 1e-1 the steps are too large; below 1e-4 the parameter hardly learns. Adjust the learning rate.",
    },
    "quantile": {
        "what": "The value below which that percentage of the elements lies, within a factor of two (from a histogram).",
        "usual": "Symmetric around 0 for gradients and parameters.",
        "do": "Compare p1 and p99 with the extremes: far away from them, single elements dominate.",
    },
    "cosine": {
        "what": "The cosine of the angle between this gradient and that of the watched step before.",
        "usual": "Slightly positive early in training, near 0 later.",
        "do": "Clearly negative: the steps overshoot. Lower the learning rate or raise the momentum.",
    },
    "micro_cosine": {
        "what": "How well the gradients of the micro-batches of a step agree: 1 if all agree, 0 if they are unrelated. "
        "It needs two micro-batches.",
        "usual": "Falls during training, as noise takes over.",
        "do": "Near 1: the batch is larger than it needs to be. Near 0: a larger batch would help.",
    },
    "noise_scale": {
        "what": "The gradient noise scale, in micro-batches: the batch at which noise and gradient are of equal size. "
        "It needs two micro-batches.",
        "usual": "Grows during training. No value: the noise hides the gradient.",
        "do": "Far above the micro-batches of a step: a larger batch makes better steps. Far below: it is wasted.",
    },
    "histogram": {
        "what": "How many elements have which magnitude and sign: buckets that double in width.",
        "usual": "One hump on each side of 0, or one side only behind a ReLU.",
        "do": "A hump that splits or wanders shows what one number hides. Look for the step at which it begins.",
    },
    "run/loss": {
        "what": "The mean of the losses of the step, over backward passes, micro-batches and ranks, without the loss scale.",
        "usual": "Falls, fast at first, with noise from batch to batch.",
        "do": "A jump, or no fall at all: read the findings, and look for the layer where it begins in the heat map.",
    },
    "run/grad_norm": {
        "what": "The norm of the gradients of all watched parameters together, before Lightning's clipping.",
        "usual": "Rises while the learning rate warms up, then falls.",
        "do": "Jumps of more than a factor of 10: look in the heat map at that step for the layer where they begin.",
    },
    "run/final_grad_norm": {
        "what": "The norm of the gradients that the optimizer uses: after every transform and clipping.",
        "usual": "Equal to run/grad_norm where nothing changes gradients; never above the limit of a clipping.",
        "do": "Always at the limit: the clipping sets the size of every step. Raise the limit or lower the learning rate.",
    },
    "dead_units": {
        "what": "The share of units (channels, features, heads) of which no element of the step reaches a magnitude of 1e-5.",
        "usual": "0, behind a rectifier up to a few per cent.",
        "do": "A share that grows: these units no longer learn. Look at the learning rate, the bias and the initialisation.",
    },
    "outlier_units": {
        "what": "How many units have a magnitude above 100 and above 674 times the median root mean square of the units.",
        "usual": "0; a few in some layers of trained language models.",
        "do": "In low precision outliers take the range of all other units. Look at the norms before this layer.",
    },
    "unit_max_over_median": {
        "what": "The largest magnitude divided by the median of the units' largest magnitudes.",
        "usual": "Below 10.",
        "do": "Steady growth: one unit takes over. top_unit says which.",
    },
    "load_cv": {
        "what": "How unevenly the units share the load: its standard deviation divided by its mean. 0: all have the same.",
        "usual": "Of a router below 1.",
        "do": "Growth of a router's: experts are idle. Look at the auxiliary loss that balances them.",
    },
    "effective_units": {
        "what": "How many units carry the load: exp of the entropy of their shares. The number of units if all have the same.",
        "usual": "A large part of the number of units.",
        "do": "Near 1: one unit carries everything. busiest_unit says which.",
    },
    "top_unit": {
        "what": "The index of the unit with the largest magnitude.",
        "usual": "Changes from step to step.",
        "do": "Always the same one: compare unit_max_over_median.",
    },
    "busiest_unit": {
        "what": "The index of the unit with the largest load.",
        "usual": "Changes from step to step.",
        "do": "Always the same one: compare load_cv and effective_units.",
    },
    "unit_variation": {
        "what": "How much units vary over the samples of the step, relative to their size. 0 if all samples give one output.",
        "usual": "Above 0.1.",
        "do": "Near 0: the output hardly depends on the input. Look at the layers before it for dead or saturated units.",
    },
    "run/param_norm": {
        "what": "The norm of all watched parameters together.",
        "usual": "Grows slowly.",
        "do": "Steady growth: consider weight decay.",
    },
    "run/update_ratio": {
        "what": "The norm of the update of all watched parameters divided by the norm of the parameters.",
        "usual": "About 1e-3, following the schedule of the learning rate.",
        "do": "Above 1e-1 the steps are too large; below 1e-4 hardly anything is learned. Adjust the learning rate.",
    },
    "run/nonfinite": {
        "what": "How many elements of all watched tensors are NaN or infinite.",
        "usual": "0.",
        "do": "The list of rows with NaN names the first step and the first rows.",
    },
    "run/noise_scale": {
        "what": "The gradient noise scale of all parameters for which it was asked, in micro-batches.",
        "usual": "Grows during training.",
        "do": "Far above the micro-batches of a step: a larger batch makes better steps. Far below: it is wasted.",
    },
    "run/skipped_steps": {
        "what": "How many steps the loss scaler or a transform has skipped so far, because a gradient was not finite.",
        "usual": "A few at the beginning in float16; 0 otherwise.",
        "do": "Steady growth: the loss scale never settles, or gradients overflow. Look at nonfinite of grad.",
    },
    "run/overhead": {
        "what": "The share of the time of a step that watching takes.",
        "usual": "Some per cent; more where steps take milliseconds.",
        "do": "Watch fewer steps (every_n_steps), or set max_overhead.",
    },
}
