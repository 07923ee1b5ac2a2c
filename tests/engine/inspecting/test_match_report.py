"""The match report for a terminal."""

from torch import nn

from lightning_hooks import Watch, match


def test_a_terminal_gets_no_escape_sequence_of_a_name():
    model = nn.Sequential()
    model.add_module("\x1b[31mred", nn.Linear(1, 1))
    said = str(match(model, rules=[Watch(modules="*")]))
    assert r"\x1b[31mred" in said and all(each.isprintable() for each in said.replace("\n", ""))
