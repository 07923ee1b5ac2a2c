"""Rules on teachers and target networks: one that is never synchronised, and one that an optimizer changes."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from lightning_hooks.health.rules.teachers import TargetNeverSynchronised, TeacherTrained
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, Sighting, StepFacts
from tests.engine.lookouts.loops import in_loop
from tests.health.rules.made import diagnosed, found, of_rms, reason, run, structure_of

RULES = ["TargetNeverSynchronised", "TeacherTrained"]


class Distilled(nn.Module):
    """A student beside a teacher in evaluation mode, which sees gradients or not."""

    def __init__(self, detached, name="teacher"):
        super().__init__()
        torch.manual_seed(0)
        self.student = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.guide = name
        self.add_module(name, nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2)))
        self.detached = detached

    def forward(self, inputs):
        guide = getattr(self, self.guide).eval()
        with torch.set_grad_enabled(not self.detached):
            wanted = guide(inputs)
        return (self.student(inputs) - wanted).square().mean()


def distilled(model, steps=20, held=None):
    optimizer = torch.optim.AdamW((held or model).parameters(), 1e-3)

    def loop(watched, step):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).backward()
        optimizer.step()

    return in_loop(model, optimizer, loop, RULES, steps)


def test_a_teacher_in_evaluation_mode_that_is_trained_is_a_warning():
    finding = distilled(Distilled(detached=False))["TeacherTrained"]
    assert (finding.rows, finding.severity) == (("teacher",), "warning")
    assert finding.message == ("teacher: it is in evaluation mode, and the step of an optimizer changes 4 of its 4 parameters.")


@pytest.mark.parametrize(
    "options",
    [{"detached": True}, {"detached": False, "name": "critic"}],
    ids=["held without gradients", "another name"],
)
def test_a_teacher_that_is_only_held_and_a_part_in_evaluation_mode_are_silent(options):
    assert distilled(Distilled(**options)) == {}


def test_a_teacher_that_no_optimizer_holds_is_silent():
    model = Distilled(detached=False)
    assert distilled(model, held=model.student) == {}


def test_a_run_that_is_all_in_evaluation_mode_is_silent_and_another_has_no_teacher():
    structure = structure_of({"teacher.fc": "Linear"})
    held = OptimizerFacts("SGD", (GroupFacts(0.1, 0.0, ("teacher.fc.weight",)),))
    views = lambda *evaluating: run(  # noqa: E731
        structure, {("update", "teacher.fc.weight"): of_rms(1e-3)}, facts=StepFacts((held,), evaluating=evaluating)
    )
    assert found(TeacherTrained(), views("teacher", "teacher.fc")) == {"teacher": 0}
    assert found(TeacherTrained(), views("", "teacher", "teacher.fc")) == {}
    other = run(structure_of({"fc": "Linear"}), {("update", "fc.weight"): of_rms(1e-3)}, facts=StepFacts((held,)))
    assert reason(TeacherTrained(), other).endswith("no module is called a teacher, a target or an average")


class Agent:
    """Holds an online network and its target, which are no parts of one model."""

    def __init__(self, every, name="target_net"):
        torch.manual_seed(0)
        self.online = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.name, self.every = name, every
        setattr(self, name, deepcopy(self.online))

    def said(self, steps, write=lambda own, source: own.load_state_dict(source.state_dict()), **limits):
        optimizer = torch.optim.Adam(self.online.parameters(), 1e-2)
        target = getattr(self, self.name)

        def loop(watched, step):
            inputs = torch.randn(16, 4)
            with torch.no_grad():
                goal = 1 + 0.9 * target(inputs)
            optimizer.zero_grad()
            (self.online(inputs) - goal).square().mean().backward()
            optimizer.step()
            if self.every and step % self.every == self.every - 1:
                write(target, self.online)

        return in_loop(self.online, optimizer, loop, [TargetNeverSynchronised(**limits)], steps)


def test_a_target_outside_of_the_model_that_is_never_synchronised_is_a_note_with_its_variable():
    finding = Agent(every=0).said(80, unknown=60)["TargetNeverSynchronised"]
    assert (finding.rows, finding.first_step, finding.severity) == (("",), 75, "info")
    assert finding.message.startswith(
        "The target network `target_net` has not been synchronised: at step 75 it is what it was at step 2, and its source has "
        "moved by "
    )
    assert finding.message.endswith(" % of its weights.")


@torch.no_grad()
def through_data(target, online):
    for own, source in zip(target.parameters(), online.parameters(), strict=True):
        own.data.lerp_(source.data, 0.01)


@pytest.mark.parametrize(
    ("agent", "options"),
    [
        ({"every": 50}, {}),
        ({"every": 1}, {"write": through_data}),
        ({"every": 0, "name": "reference"}, {}),
        ({"every": 0}, {"unknown": 5000}),
    ],
    ids=["now and then", "slowly and through data", "a reference", "not for long"],
)
def test_targets_that_are_synchronised_or_kept_on_purpose_are_silent(agent, options):
    assert Agent(**agent).said(80, **{"unknown": 60, **options}) == {}


def test_a_target_that_began_as_another_network_is_silent():
    agent = Agent(every=0)
    for each in agent.target_net.parameters():
        nn.init.normal_(each)
    assert agent.said(80, unknown=60) == {}


def test_half_of_a_fit_whose_end_is_known_decides_and_harm_makes_it_a_warning():
    sighting = Sighting("target-stands-still", "the target stands still", is_fact=False, measured=500.0)
    facts = StepFacts(looked_for=("target-stands-still",), sightings=(sighting,), last_step=1000)
    views = run(structure_of({"fc": "Linear"}), {}, steps=80, facts=facts)
    assert found(TargetNeverSynchronised(share=0.6), views) == {}
    (finding,) = diagnosed(TargetNeverSynchronised(), views).findings
    assert finding.severity == "warning" and finding.harm.startswith("the loss has not fallen")
