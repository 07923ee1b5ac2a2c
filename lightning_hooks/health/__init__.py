"""What a training says about itself: evidence, rules, findings and causes. Knows neither torch nor Lightning."""

from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.rule import HealthRule, Severity, Sign

__all__ = ["Cause", "Finding", "HealthRule", "Severity", "Sign"]
