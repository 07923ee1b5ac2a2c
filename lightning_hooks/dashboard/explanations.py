"""What each statistic means, what is usual, and what to do about it, for a person who looks at it."""

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
        "what": "The standard deviation of all elements around their mean.",
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
        "do": "Below 1e-7 over many steps the gradient vanishes: look at the layers behind this one.",
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
        "what": "The share of elements below the smallest normal number of the dtype, zeros apart.",
        "usual": "0, or a few per cent in float16.",
        "do": "More than 10 %: use a loss scaler, or bfloat16.",
    },
    "nonfinite": {
        "what": "How many elements are NaN or infinite.",
        "usual": "0. With a loss scaler, single steps at which it overflows are normal and are skipped.",
        "do": "Find the first step and, in the order of execution, the first layer; look at its input there.",
    },
    "ratio": {
        "what": "The norm of the update divided by the norm of the parameter.",
        "usual": "About 1e-3.",
        "do": "Above 1e-1 the steps are too large; below 1e-4 the parameter hardly learns. Adjust the learning rate.",
    },
    "quantile": {
        "what": "The value below which that percentage of the elements lies, interpolated in a histogram of magnitudes.",
        "usual": "Symmetric around 0 for gradients and parameters.",
        "do": "Compare p1 and p99 with the extremes: far away from them, single elements dominate.",
    },
    "cosine": {
        "what": "The cosine of the angle between the gradients of two steps that follow each other.",
        "usual": "Slightly positive early in training, near 0 later.",
        "do": "Clearly negative: the steps overshoot. Lower the learning rate or raise the momentum.",
    },
    "micro_cosine": {
        "what": "How well the gradients of the micro-batches of a step agree: the average cosine between them.",
        "usual": "Falls during training, as noise takes over.",
        "do": "Near 1: the batch is larger than it needs to be. Near 0: a larger batch would help.",
    },
    "noise_scale": {
        "what": "The gradient noise scale: the batch size at which noise and signal are of equal size.",
        "usual": "Grows during training.",
        "do": "Far above the batch size: a larger batch makes better steps. Far below: it is wasted.",
    },
}
