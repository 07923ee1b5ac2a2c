"""The single-pass measurement of a tensor: the seam behind which the kernels stand."""

from lightning_hooks.stats.kernels.reference import measure, measure_many

__all__ = ["measure", "measure_many"]
