"""What a training says about itself: evidence, rules, findings and causes. Knows neither torch nor Lightning."""

from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.rule import HealthRule, Severity, Symptom, symptoms_where

__all__ = ["Cause", "Finding", "HealthRule", "Severity", "Symptom", "symptoms_where"]
