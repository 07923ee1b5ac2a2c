"""A diagnosis goes on after a resume in mid-epoch: what was told stays told, and what was counted goes on counting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch import Callback

from lightning_hooks import HealthMonitor, StatsMonitor
from lightning_hooks.health import HealthRule
from lightning_hooks.health.rule import symptoms_where
from tests.callbacks.models import adamw
from tests.conformance.test_resume import fit, saver

pytestmark = pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")


@dataclass(frozen=True, kw_only=True)
class HasGradient(HealthRule):
    """A pattern that is there from the first step on, and is told after the checkpoint."""

    patience: int = 9
    every_n_steps: int = 1
    needs: ClassVar[tuple[tuple[str, str], ...]] = (("grad", "norm"),)

    def check(self, evidence: Any) -> Any:
        track = evidence.track("grad", "norm")
        return symptoms_where(track, track.values >= 0, 0.0, lambda value: "it has a gradient")


@dataclass(frozen=True, kw_only=True)
class WarmsUp(HasGradient):
    """The same behind a warm-up that ends after the checkpoint."""

    patience: int = 2
    warmup: int = 9


def forgetful(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return adamw([*parameters][2:])


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a monitor"])
def test_a_diagnosis_goes_on_after_a_resume_in_mid_epoch(tmp_path: Path, beside: bool, accumulate: int) -> None:
    told: dict[str, list[str]] = {"whole": [], "resumed": []}

    def health(name: str) -> HealthMonitor:
        call = {"call": lambda finding: told[name].append(finding.rule)}
        return HealthMonitor([HasGradient(), WarmsUp(), "NotInOptimizer"], actions={"warning": call})

    def fitted(name: str, *others: Callback, resume: Path | None = None) -> tuple[Any, HealthMonitor]:
        monitor = health(name)
        ours = [*([StatsMonitor()] if beside else []), monitor]
        model, *_ = fit(
            tmp_path, ours, *others, resume=resume, make=forgetful, max_epochs=4, accumulate_grad_batches=accumulate
        )
        return model, monitor

    bare, *_ = fit(tmp_path, [], make=forgetful, max_epochs=4, accumulate_grad_batches=accumulate)
    whole, one = fitted("whole", saver(tmp_path / "saved"))
    resumed, other = fitted("resumed", resume=tmp_path / "saved" / "step=6.ckpt")
    for name, value in bare.state_dict().items():
        assert torch.equal(value, whole.state_dict()[name]) and torch.equal(value, resumed.state_dict()[name]), name
    late = ["HasGradient", "WarmsUp"]
    assert told == {"whole": ["NotInOptimizer", *late], "resumed": late}, "nothing is told twice"
    assert [finding.to_dict() for finding in other.findings] == [finding.to_dict() for finding in one.findings]
    assert [finding.first_step for finding in other.findings] == [0, 0, 9]
    assert other.causes == one.causes and other.summary == one.summary
