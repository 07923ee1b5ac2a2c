"""Every number of the page explains itself."""

from lightning_hooks.dashboard.explanations import EXPLANATIONS
from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.schema import STATISTICS
from lightning_hooks.stats.units.statistics import NAMES as UNIT_STATS


def test_every_statistic_says_what_it_is_what_is_usual_and_what_to_do():
    summaries = (
        "loss",
        "grad_norm",
        "final_grad_norm",
        "param_norm",
        "update_ratio",
        "noise_scale",
        "nonfinite",
        "overhead",
        "skipped_steps",
    )
    expected = {each.name for each in STATISTICS} | {*PAIR_STATS, *UNIT_STATS, "count", "ratio", "histogram", "quantile"}
    assert {*EXPLANATIONS} == expected | {f"run/{name}" for name in summaries}
    for name, each in EXPLANATIONS.items():
        assert [*each] == ["what", "usual", "do"], name
        assert all(text.endswith(".") for text in each.values()), name
