"""A run that resumes, mid-epoch too, goes on bit for bit as if it had never stopped; rules that changed are named, once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lightning_hooks import ActivationTransforms, Apply, GradientTransforms, StatsMonitor, Watch
from lightning_hooks.transforms import EMA, AddNoise, AutoClip, Dropout, Scale, ZClip
from tests.callbacks.models import Memory, Net, ValNet, adamw, assert_clean, data, trainer_of
from tests.versions import reading

pytestmark = pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")

RULES = [
    Watch(modules="*", tensors=["output", "output_grad"]),
    Watch(params="*", tensors="grad", stats=["norm", "noise_scale", "micro_cosine"]),
    Watch(params="*", tensors=["param", "final_grad", "update"]),
]


class Resumable(DataLoader[Any]):
    """Goes on with the batch after the last one it gave, as Lightning asks of a loader that can."""

    def __init__(self, batches: Sequence[Any]) -> None:
        super().__init__(list(batches), batch_size=None)  # type: ignore[arg-type]
        self.begun = self.start = 0

    def __iter__(self) -> Any:
        start, self.start = self.start, 0
        for position in range(start, len(self.dataset)):  # type: ignore[arg-type]
            self.begun = position + 1
            yield self.dataset[position]

    def state_dict(self) -> dict[str, int]:
        return {"begun": self.begun}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["begun"] % len(self.dataset)  # type: ignore[arg-type]


def callbacks() -> list[Callback]:
    """Whatever keeps something from step to step: counts, averages, generators, at every place."""
    return [
        StatsMonitor(RULES, max_scalars=5000),
        GradientTransforms(
            [
                Apply([EMA(0.5), AddNoise(0.1), Dropout(0.3)], params="*"),
                Apply([AutoClip(), ZClip()], params="body.0.*"),
                Apply(AddNoise(0.1), params="*", when="backward"),
                Apply(AddNoise(0.1), modules="body.3"),
            ]
        ),
        GradientTransforms([Apply(EMA(0.9), params="body.3.*")]),
        ActivationTransforms([Apply(AddNoise(0.1), modules="body.0")]),
    ]


def fit(
    folder: Path, ours: Sequence[Callback], *others: Callback, resume: Path | None = None, make: Any = adamw, **options: Any
) -> Any:
    torch.manual_seed(99 if resume else 0)  # what else was drawn meanwhile does not matter
    model, memory = Net(make, dropout=0.0), Memory()
    torch.manual_seed(98 if resume else 1)
    trainer = trainer_of(folder, *ours, *others, logger=memory, **{"max_epochs": 2, "enable_checkpointing": True, **options})
    batches = Resumable(list(data(8)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, batches, ckpt_path=resume, **reading(True if resume else None))
    assert_clean(model)
    said = [str(w.message) for w in caught if "since the checkpoint" in str(w.message)]
    return model, memory, said, trainer


def saver(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)


def exactly(memory: Memory, after: int) -> dict[int, dict[str, str]]:
    """Everything written after a step, to the last bit (as text, so that NaN equals NaN), but for the time that it took."""
    lines = {step: {tag: float(v).hex() for tag, v in line.items() if tag != "run/overhead"} for step, line in memory.ours}
    return {step: line for step, line in lines.items() if step >= after}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("stop", ["in the first epoch", "at its end", "in the second epoch"])
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path, stop: str, accumulate: int) -> None:
    epoch = 8 // accumulate
    step = {"in the first epoch": epoch // 2 + 1, "at its end": epoch, "in the second epoch": epoch + epoch // 2}[stop]
    options = {"accumulate_grad_batches": accumulate}
    whole, all_lines, said, trainer = fit(tmp_path, callbacks(), saver(tmp_path / "saved"), **options)
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    assert not said
    ours = callbacks()
    resumed, lines, said, trainer = fit(tmp_path, ours, resume=tmp_path / "saved" / f"step={step}.ckpt", **options)
    trainer.save_checkpoint(tmp_path / "resumed.ckpt")
    assert not said
    assert exactly(lines, step) == exactly(all_lines, step)
    assert min(exactly(lines, 0)) == step, "and nothing from before"
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert kept(tmp_path / "whole.ckpt") == kept(tmp_path / "resumed.ckpt"), "state of every rule, counts and generators"


def kept(path: Path) -> str:
    """What our callbacks put into a checkpoint, as text."""
    torch.set_printoptions(profile="full")
    try:
        saved = torch.load(path, weights_only=True)
        ours = {name: saved[name] for name in sorted(saved) if name.startswith("lightning_hooks")}
        for state in ours.get("lightning_hooks.StatsMonitor", {}).values():
            del state["disk"]  # The bytes that were written: a resumed run writes its rules and its lists of rows again.
        return repr(ours)
    finally:
        torch.set_printoptions(profile="default")


def stopped(folder: Path, ours: Sequence[Callback]) -> Path:
    """The checkpoint of a run of one epoch."""
    *_, trainer = fit(folder, ours, max_epochs=1)
    trainer.save_checkpoint(folder / "stopped.ckpt")
    return folder / "stopped.ckpt"


def gradients(*rules: Apply) -> GradientTransforms:
    return GradientTransforms(rules)


FIRST, SECOND = Apply(EMA(0.5), params="body.0.*"), Apply(Scale(0.5), params="body.3.*")
CHANGES: dict[str, tuple[list[Apply], str | None]] = {
    "nothing": ([FIRST, SECOND], None),
    "another order": ([SECOND, FIRST], None),
    "a number": ([FIRST, Apply(Scale(0.9), params="body.3.*")], "Scale(factor=0.5) is now Scale(factor=0.9)"),
    "a transform": ([FIRST, Apply(AddNoise(0.1), params="body.3.*")], "Scale(factor=0.5) is now AddNoise(std=0.1, decay=0.0)"),
    "a pattern": (
        [FIRST, Apply(Scale(0.5), params="body.3.weight")],
        "Scale(factor=0.5) on params 'body.3.*' is gone; Scale(factor=0.5) on params 'body.3.weight' is new",
    ),
    "when": (
        [FIRST, Apply(Scale(0.5), params="body.3.*", when="backward")],
        "Scale(factor=0.5) on params 'body.3.*' is gone; Scale(factor=0.5) on params 'body.3.*' in backward is new",
    ),
    "a rule more": ([FIRST, SECOND, Apply(Scale(0.1), params="*")], "Scale(factor=0.1) on params '*' is new"),
    "a rule less": ([FIRST], "Scale(factor=0.5) on params 'body.3.*' is gone"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_rules_that_changed_are_named_in_one_warning_and_the_others_go_on(tmp_path: Path, what: str) -> None:
    path = stopped(tmp_path, [gradients(FIRST, SECOND)])
    rules, message = CHANGES[what]
    _, _, said, trainer = fit(tmp_path, [gradients(*rules)], resume=path)
    start = "the transforms changed since the checkpoint; what changed restarts: "
    assert said == ([] if message is None else [start + message])
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    state = links(tmp_path / "after.ckpt")
    (average,) = [link for link in state if link["transform"].startswith("EMA")]
    assert average["report"]["reported_steps"] == 16, "the rule that did not change has counted both epochs"


def links(path: Path) -> list[dict[str, Any]]:
    saved = torch.load(path, weights_only=True)["lightning_hooks.GradientTransforms"]
    return [link for one in saved.values() for link in one["links"]]


def test_two_callbacks_with_the_same_rules_each_get_their_own_state(tmp_path: Path) -> None:
    def pair() -> list[Callback]:
        return [gradients(Apply(AddNoise(0.1), params="*")), StatsMonitor(), gradients(Apply(AddNoise(0.1), params="*"))]

    whole, *_ = fit(tmp_path, pair())
    resumed, _, said, _ = fit(tmp_path, pair(), resume=stopped(tmp_path, pair()))
    assert not said
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (["body.0.*", "body.3.*"], None),
        (["body.3.*", "body.0.*"], None),
        (["body.0.*"], "grad of body.3.weight is gone, grad of body.3.bias is gone"),
        (["body.*"], None),
    ],
)
def test_rows_of_an_average_that_changed_are_named_in_one_warning(tmp_path: Path, now: list[str], message: str | None) -> None:
    def monitor(patterns: list[str]) -> StatsMonitor:
        return StatsMonitor([Watch(params=pattern, tensors="grad", stats=["noise_scale"]) for pattern in patterns])

    options = {"accumulate_grad_batches": 2}
    *_, trainer = fit(tmp_path, [monitor(["body.0.*", "body.3.*"])], max_epochs=1, **options)
    trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    _, _, said, _ = fit(tmp_path, [monitor(now)], resume=tmp_path / "stopped.ckpt", **options)
    start = "the rows of noise_scale changed since the checkpoint: "
    assert said == ([] if message is None else [start + message])


def test_a_new_row_of_an_average_starts_again_and_is_named(tmp_path: Path) -> None:
    def monitor(pattern: str) -> StatsMonitor:
        return StatsMonitor([Watch(params=pattern, tensors="grad", stats=["noise_scale"])])

    options = {"accumulate_grad_batches": 2}
    *_, trainer = fit(tmp_path, [monitor("body.0.*")], max_epochs=1, **options)
    trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    _, _, said, _ = fit(tmp_path, [monitor("body.*.weight")], resume=tmp_path / "stopped.ckpt", **options)
    changed = "grad of body.3.weight starts again, grad of body.0.bias is gone"
    assert said == [f"the rows of noise_scale changed since the checkpoint: {changed}"]


@pytest.mark.parametrize("same", [False, True], ids=["another callback", "the same callback"])
@pytest.mark.parametrize("every", [1, 2])
def test_the_first_cosine_after_a_resume_is_absent_and_the_others_are_those_of_the_whole_run(
    tmp_path: Path, every: int, same: bool
) -> None:
    def monitor() -> StatsMonitor:
        rules = [
            Watch(params="*", tensors="grad", stats=["norm", "cosine"]),
            Watch(params="body.0.*", tensors="grad", stats="cosine", group_by={"first": "*"}),
        ]
        return StatsMonitor(rules, every_n_steps=every)

    def cosines(memory: Memory) -> dict[int, dict[str, str]]:
        return {step: {t: v for t, v in line.items() if "cosine" in t} for step, line in exactly(memory, 0).items()}

    ours = monitor()
    _, all_lines, *_ = fit(tmp_path, [ours], saver(tmp_path / "saved"))
    _, lines, said, _ = fit(tmp_path, [ours if same else monitor()], resume=tmp_path / "saved" / "step=5.ckpt")
    whole, resumed = cosines(all_lines), cosines(lines)
    first = 5  # watched at both intervals
    assert not said and list(resumed) == list(range(first, 16, every))
    assert resumed[first] == {} and len(whole[first]) == 5, "no gradient before it is in the checkpoint"
    assert {s: line for s, line in resumed.items() if s > first} == {s: line for s, line in whole.items() if s > first}
    assert exactly(lines, first)[first].keys() < exactly(all_lines, first)[first].keys(), "and all others have their value"


class SavesAt(Callback):
    """Saves a checkpoint whenever one method of callbacks is called."""

    def __init__(self, method: str, path: Path) -> None:
        setattr(self, method, lambda trainer, *args: trainer.save_checkpoint(path / f"{trainer.global_step}.ckpt"))


@pytest.mark.parametrize(
    ("method", "saved_at", "shift"),
    [
        ("on_train_batch_end", 8, 0),
        ("on_validation_end", 8, 0),
        ("on_train_epoch_end", 8, 0),
        ("on_train_end", 16, 0),
        ("on_validation_end", 4, 0),
        # Lightning itself counts one step too many here, and leaves an epoch out.
        ("on_train_epoch_start", 8, 1),
    ],
)
def test_the_first_step_after_a_resume_has_the_number_that_lightning_logs(
    tmp_path: Path, method: str, saved_at: int, shift: int
) -> None:
    def logged(epochs: int, *others: Callback, resume: Path | None = None) -> tuple[Memory, Trainer]:
        memory = Memory()
        options = {"max_epochs": epochs, "logger": memory, "val_check_interval": 4, "enable_checkpointing": True}
        trainer = trainer_of(tmp_path, StatsMonitor(RULES[2:]), *others, **options)
        trainer.fit(ValNet(adamw, log=True), data(8), data(1), ckpt_path=resume, **reading(False if resume else None))
        return memory, trainer

    logged(2, SavesAt(method, tmp_path))
    memory, trainer = logged(3, resume=tmp_path / f"{saved_at}.ckpt")
    lightnings = [step for step, line in memory.calls if "loss" in line]
    ours = [step for step, _ in memory.ours]
    assert ours == lightnings and ours[0] == saved_at + shift


def test_a_checkpoint_of_a_run_without_our_callbacks_is_no_change(tmp_path: Path) -> None:
    _, _, said, _ = fit(tmp_path, callbacks(), resume=stopped(tmp_path, []))
    assert not said
