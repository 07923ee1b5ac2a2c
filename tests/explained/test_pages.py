"""`command_for` names a command for what the package knows, and nothing for a rule of the user's."""

import dataclasses

from lightning_hooks.explained import command_for, page_of, pages
from lightning_hooks.explained.pages import as_json
from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.text import block_of_finding

DEAD = Finding(
    "DeadUnits",
    rows=("fc",),
    tensor="output",
    first_step=1,
    last_step=2,
    severity=Severity.WARNING,
    evidence=(),
    message="Dead.",
)


def test_a_finding_names_the_command_once_in_its_block_and_its_first_line_of_the_journal():
    command = "lightning-hooks explain DeadUnits"
    assert list(block_of_finding(DEAD).lines())[-1] == f"  More  {command}"
    assert Event("new", 2, DEAD).to_dict()["more"] == command
    assert "more" not in Event("over", 2, DEAD).to_dict()
    assert Event("cause", 2, cause=Cause("BadBatch", "One batch.", ())).to_dict()["more"].endswith("explain BadBatch")
    assert Event.from_dict(Event("new", 2, DEAD).to_dict()) == Event("new", 2, DEAD)


def test_a_rule_of_the_user_has_no_page():
    own = dataclasses.replace(DEAD, rule="Mine")
    assert command_for("Mine") == "" and "more" not in Event("new", 2, own).to_dict()
    assert not any("More" in line for line in block_of_finding(own).lines())


def test_the_file_holds_each_page_as_it_is_read():
    assert page_of("DeadUnits") is pages()["DeadUnits"]
    assert as_json({"DeadUnits": pages()["DeadUnits"]}).count('"title"') == 6
