"""Families of trainings: each file draws what is special to it, makes the case of a spec, and says when one is healthy."""

from __future__ import annotations

from benchmarks.trainings.families.catalogue import FAMILIES
from benchmarks.trainings.families.family import Family

__all__ = ["FAMILIES", "Family"]
