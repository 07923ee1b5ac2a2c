"""The default prefix of tags, and the names of monitors without it."""

import pytest

from lightning_hooks import Apply, GradientTransforms, HealthMonitor, StatsMonitor
from lightning_hooks.callbacks.environment import DEFAULTS
from lightning_hooks.rules.prefix import ROOT, name_of
from lightning_hooks.transforms import Scale


def test_all_callbacks_are_below_one_prefix_by_default() -> None:
    transforms = GradientTransforms([Apply(Scale(0.5), params="*")])
    prefixes = [StatsMonitor().prefix, HealthMonitor().prefix, transforms.prefix, DEFAULTS["prefix"]]
    assert prefixes == ["watch/", "watch/health/", "watch/", "watch/environment/"] and ROOT == "watch/"


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("watch/", ""),
        ("watch/health/", "health/"),
        ("", ""),
        ("mine/", "mine/"),
        ("mine/watch/", "mine/watch/"),
        ("watch", "watch"),
    ],
)
def test_tables_know_a_monitor_without_the_default_prefix(prefix: str, name: str) -> None:
    assert name_of(prefix) == name
