"""What many causes share: the findings in which many faults end, and what helps against too large steps."""

from __future__ import annotations

from typing import Final

UNSTABLE: Final = (
    "LossSpike",
    "LossDiverged",
    "GradientSpike",
    "ExplodingGradient",
    "UpdateTooLarge",
    "WeightGrowth",
    "NonFinite",
)
"""The findings to which too large steps lead, whatever made them too large."""
STUCK: Final = ("LossConstant", "UpdateTooSmall", "VanishingGradient", "UnchangedParameter", "ZeroGradients")
"""The findings of a training that does not learn, whatever the reason is."""
DULL: Final = (
    *("DeadUnits", "DeadLayer", "ZeroInput", "SaturatedActivation", "ConstantOutput", "MassiveActivation", "UnitCollapse"),
)
"""The findings on activations with which many faults end, whatever the reason is."""
SMALLER_STEPS: Final = (
    "Divide the learning rate by 10, and again until the loss falls, or warm it up over some hundred steps.",
    "Clip the norm of the gradient.",
)
"""What to try against steps that are too large."""
