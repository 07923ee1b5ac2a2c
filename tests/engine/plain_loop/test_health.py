"""`instrument(model, [StatsMonitor(), HealthMonitor()])`: what a loop is told, and where; the training stays as it is."""

import json
import sys
import warnings
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from tqdm import tqdm

from lightning_hooks import HealthMonitor, RuleError, StatsMonitor, assert_no_hooks, instrument
from lightning_hooks.callbacks._terminal import print_in_loop
from lightning_hooks.cli.main import main
from lightning_hooks.dashboard.findings import listed
from lightning_hooks.health import HealthRule
from lightning_hooks.health.finding import stands
from lightning_hooks.health.journal import read_findings
from lightning_hooks.health.reporter import HealthError


def model_of(name="2"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
    model.add_module(name, nn.Linear(8, 3))
    return model


def batches(steps=30):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 6, generator=generator) for _ in range(steps)]


def train(model, held=None, health=None, steps=30, has_loss=True, fails_at=None, **options):
    """Train in a block, with an optimizer that holds some parameters; returns the monitor of its health."""
    health = HealthMonitor() if health is None else health
    optimizer = torch.optim.SGD(model.parameters() if held is None else held, lr=0.1)
    with instrument(model, [StatsMonitor(), health], optimizer=optimizer, **options) as watched:
        for step, batch in enumerate(batches(steps)):
            if step == fails_at:
                raise ValueError("the loop fails")
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            if has_loss:
                watched.note_loss(loss)
            loss.backward()
            optimizer.step()
    assert_no_hooks(model)
    return health


def rules_of(health):
    return {finding.rule for finding in health.findings}


def test_a_healthy_loop_is_told_one_line_and_its_weights_are_the_same_bits(tmp_path, capsys):
    watched, plain = model_of(), model_of()
    train(watched, folder=tmp_path)
    watches, said = capsys.readouterr().err.splitlines()
    assert watches == "StatsMonitor watches 3 modules and 4 parameters"
    assert said.startswith("No problem found in ")
    assert "30 steps; the loss went from " in said
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for batch in batches():
        optimizer.zero_grad()
        plain(batch).square().mean().backward()
        optimizer.step()
    assert all(map(torch.equal, watched.parameters(), plain.parameters()))
    assert main(["doctor", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}: no problem found in 30 steps; the loss went from ")


def test_a_forgotten_layer_is_told_once_with_its_cause_and_is_in_the_files(tmp_path, capsys):
    model = model_of()
    health = train(model, model[0].parameters(), folder=tmp_path)
    said = capsys.readouterr().err
    assert said.count("WARNING: ParametersForgotten (certain)") == 1 and said.count("Not healthy in ") == 1
    assert "NotInOptimizer" in rules_of(health) and [cause.name for cause in health.causes] == ["ParametersForgotten"]
    known = read_findings(tmp_path)
    assert known.findings == health.findings and known.causes == health.causes and known.has_ended
    assert main(["doctor", str(tmp_path)]) == 1


def test_a_message_stands_above_the_bar_that_the_loop_draws(capsys):
    with tqdm(total=3, file=sys.stderr):
        print_in_loop(lambda stream: "what is told")
    assert "\rwhat is told\n" in capsys.readouterr().err
    print_in_loop(lambda stream: "without a bar")
    assert capsys.readouterr().err == "without a bar\n"


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train(model_of())
    assert "\nNo problem found in " in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_loss_that_the_loop_does_not_note_is_found(tmp_path):
    train(model_of(), health=HealthMonitor(["LossSpike", "NotInOptimizer"]), has_loss=False, folder=tmp_path)
    assert read_findings(tmp_path).summary["ran"] == ["LossSpike", "NotInOptimizer"]


def test_rules_that_need_a_loss_say_so_where_there_is_none(tmp_path):
    model, health = model_of(), HealthMonitor(["LossSpike", "NotInOptimizer"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with instrument(model, [StatsMonitor(), health], optimizer=optimizer, folder=tmp_path):
        for batch in batches():
            outputs = model(batch)
            outputs.backward(outputs.detach())
            optimizer.step()
    summary = read_findings(tmp_path).summary
    assert summary["ran"] == ["NotInOptimizer"] and summary["could_not_run"] == {"LossSpike": "no loss was measured"}
    assert summary["could_not_run"] == {"LossSpike": "no loss was measured"}


def test_a_loop_without_an_optimizer_is_diagnosed_too(capsys):
    model = model_of()
    with instrument(model, [StatsMonitor(), health := HealthMonitor()]) as watched:
        for step, batch in enumerate(batches()):
            model.zero_grad()
            if step == 20:
                model[0].weight.data.fill_(float("nan"))
            model(batch).square().mean().backward()
            watched.step()
    assert "NonFinite" in rules_of(health) and capsys.readouterr().err.count("Not healthy in ") == 1


def test_a_loop_that_fails_writes_its_error_and_is_told_no_line(tmp_path, capsys):
    with pytest.raises(ValueError, match="the loop fails"):
        train(model_of(), folder=tmp_path, fails_at=5)
    assert capsys.readouterr().err.count("\n") == 1
    known = read_findings(tmp_path)
    assert known.has_ended and known.summary["error"] == "ValueError: the loop fails" and known.summary["steps"] == 5


def test_a_second_loop_in_the_folder_is_kept_apart(tmp_path, capsys):
    model = model_of()
    train(model, model[0].parameters(), folder=tmp_path)
    train(model_of(), folder=tmp_path)
    assert read_findings(tmp_path).findings == [] and read_findings(tmp_path).fit == 2
    assert main(["doctor", str(tmp_path)]) == 0


@pytest.mark.parametrize("rule", ["LossDiverged", "NotInOptimizer"])
def test_rules_that_read_no_row_look_too(rule, capsys):
    train(model_of(), health=HealthMonitor([rule]))
    assert "\nNo problem found in 30 steps; the loss went from " in capsys.readouterr().err


class Fails(HealthRule):
    """A rule with an error."""

    def check(self, evidence):
        raise ZeroDivisionError("no luck")


def test_a_rule_that_raises_is_switched_off_and_the_loop_goes_on(capsys):
    model = model_of()
    with pytest.warns(UserWarning, match="health rule Fails failed and is switched off: ZeroDivisionError: no luck"):
        watched = train(model, model[0].parameters(), health=HealthMonitor([Fails(every_n_steps=2), "NotInOptimizer"]))
    assert rules_of(watched) == {"NotInOptimizer"} and "Fails failed" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_a_warning_and_the_loop_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    model = model_of()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        watched = train(model, model[0].parameters(), folder=tmp_path / "file")
    texts = [str(each.message) for each in said]
    assert "NotInOptimizer" in rules_of(watched)
    assert [text.partition(" (")[0].rpartition("/")[2] for text in texts] == ["findings.jsonl cannot be written"]


def test_names_with_control_characters_are_printed_as_text(tmp_path, capsys):
    model = model_of("c\x1b[31m\x07")
    train(model, model[0].parameters(), folder=tmp_path)
    said = capsys.readouterr().err
    assert r"c\x1b[31m\x07" in said and said.replace("\n", "").isprintable()
    main(["doctor", str(tmp_path)])
    assert capsys.readouterr().out.replace("\n", "").isprintable()
    assert json.loads((tmp_path / "summary.json").read_text("utf-8"))["findings"]


def test_actions_and_accepted_findings_are_those_of_a_fit(capsys):
    told = []
    model = model_of()
    health = HealthMonitor(actions={"NotInOptimizer": [{"call": told.append}, "stop"]}, accept="NotInOptimizer/2.bias")
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with instrument(model, [StatsMonitor(), health], optimizer=optimizer) as watched:
        for batch in batches():
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            if watched.stopped:
                break
    assert watched.stopped == told[0].message and watched.next_step < 30
    assert {finding.rows for finding in health.findings if finding.rule == "NotInOptimizer"} == {("2.weight",)}


def test_an_action_ends_the_loop_with_an_error():
    model = model_of()
    with pytest.raises(HealthError, match="no optimizer holds this parameter"):
        train(model, model[0].parameters(), HealthMonitor(actions={"NotInOptimizer": "raise"}))
    assert_no_hooks(model)


def test_alone_it_measures_for_itself(tmp_path, capsys):
    model = model_of()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with instrument(model, health := HealthMonitor(), optimizer=optimizer, folder=tmp_path):
        for batch in batches():
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    assert rules_of(health) == {"NotInOptimizer"} and "grad_norm/0.weight" in health.latest
    assert read_findings(tmp_path).findings == health.findings


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([HealthMonitor(check_first_batch=True)], "check_first_batch: instrument knows neither the batches nor the loss"),
        ([HealthMonitor(actions={"critical": "checkpoint"})], r"actions\['critical'\]: instrument does not know what the loop"),
        ([HealthMonitor(), HealthMonitor()], "there are two HealthMonitors, which would tell each finding twice"),
    ],
)
def test_what_a_loop_cannot_serve_is_refused_before_any_hook(callbacks, message):
    model = model_of()
    with pytest.raises(RuleError, match=message):
        instrument(model, callbacks, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert_no_hooks(model)


def learn(seed, *callbacks, rate=0.1, **options):
    """Train on data of a seed, in a block; returns the model."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    with instrument(model, [StatsMonitor(), *callbacks], optimizer=optimizer, **options) as watched:
        for _ in range(25):
            batch = torch.randn(16, 6, generator=generator)
            optimizer.zero_grad()
            loss = (model(batch) - batch[:, :3]).square().mean()
            watched.note_loss(loss)
            loss.backward()
            optimizer.step()
    assert_no_hooks(model)
    return model


def test_a_loop_is_compared_with_good_ones_while_it_runs(tmp_path, capsys):
    for seed in (0, 1):
        learn(seed, HealthMonitor(), logdir=tmp_path)
    good = [tmp_path / "run_0", tmp_path / "run_1"]
    capsys.readouterr()
    learn(2, same := HealthMonitor([], reference=good))
    assert same.findings == [] and capsys.readouterr().err.splitlines()[1].startswith("No problem found in 25 steps")
    changed = HealthMonitor([], reference=good)
    model = learn(2, changed, rate=0.05, folder=tmp_path / "changed")
    (finding,) = changed.findings
    assert (finding.rule, finding.first_step) == ("ReferenceSchedule", 0)
    assert finding.message == "The learning rate is 0.05, in the good runs 0.1 at this step."
    assert capsys.readouterr().err.count("ReferenceSchedule, since step 0") == 1
    assert read_findings(tmp_path / "changed").findings == [finding]
    plain = learn(2, rate=0.05)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    main(["baseline", *map(str, good), "-o", str(tmp_path / "baseline.json")])
    learn(2, of_baseline := HealthMonitor(reference=tmp_path / "baseline.json"), rate=0.05)
    assert [each.fingerprint for each in of_baseline.findings] == ["ReferenceSchedule"]


def test_a_finding_has_one_severity_in_terminal_journal_page_junit_and_doctor(tmp_path, capsys):
    model = model_of()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with instrument(model, [StatsMonitor(), health := HealthMonitor()], optimizer=optimizer, folder=tmp_path):
        for step, batch in enumerate(batches()):
            optimizer.zero_grad()
            (model(batch).square().mean() * (float("nan") if step == 29 else 1.0)).backward()
            optimizer.step()
    severities = {each.rule: str(each.severity) for each in health.findings}
    assert severities["NonFinite"] == "critical" and severities["NotInOptimizer"] == "warning"
    told = capsys.readouterr().err
    shown = listed(health.findings, health.causes)
    journal = read_findings(tmp_path)
    assert main(["doctor", str(tmp_path), "--junit"]) == 1
    suite = ElementTree.fromstring(capsys.readouterr().out)[0]
    assert main(["doctor", str(tmp_path), "--all"]) == 1
    screen = capsys.readouterr().out
    standing = [each for each in health.findings if stands(each)]
    assert {"NonFinite", "NotInOptimizer"} <= {each.rule for each in standing}
    for each in standing:
        (cause,) = [cause for cause in health.causes if each.number in cause.numbers] or [None]
        name, severity = (each.rule, each.severity) if cause is None else (cause.name, cause.severity)
        assert [known.severity for known in journal.findings if known.number == each.number] == [each.severity]
        assert [entry["severity"] for entry in shown if entry.get("number") == each.number] == [str(each.severity)]
        (case,) = [case for case in suite if case.get("name") == each.rule]
        assert case.find("failure").get("type") == each.severity
        for text in (told, screen):
            assert f"{severity.upper()}: {name}" in text
    assert {str(cause.severity) for cause in health.causes} == {each["severity"] for each in shown if each["kind"] == "cause"}
