"""The findings that many causes share, because many faults end in them."""

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
