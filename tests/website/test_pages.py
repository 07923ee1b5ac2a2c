"""The pages of `lightning-hooks explain`: each rule, cause, check and error has one, whole and in short sentences."""

import re

import pytest

from lightning_hooks import errors
from lightning_hooks.checks.catalogue import DEFAULT_CHECKS
from lightning_hooks.explained.pages import PATH, TITLES, as_json, pages
from lightning_hooks.health.causes import CAUSES
from lightning_hooks.health.criterion import Criterion
from lightning_hooks.health.reference.rules import REFERENCE_RULES
from lightning_hooks.health.rules import DEFAULT_RULES
from lightning_hooks.recorder.cause_words import CAUSE_WORDS, cause_name
from website.pages import collected

ERRORS = [each.__name__ for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.HooksError)]


def test_the_file_is_what_is_declared():
    assert PATH.read_text(encoding="utf-8") == as_json(collected()), "run `python -m website.pages`"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("rule", [rule.name for rule in DEFAULT_RULES]),
        ("cause", [*(cause.name for cause in CAUSES), *map(cause_name, CAUSE_WORDS)]),
        ("check", [check.name for check in DEFAULT_CHECKS]),
        ("comparison", list(REFERENCE_RULES)),
        ("error", ERRORS),
    ],
)
def test_each_name_has_a_page(kind, names):
    assert {name for name, page in pages().items() if kind in page.kinds} == set(names)


def texts():
    for page in pages().values():
        for section in page.sections:
            yield from ((page.name, section.title, text) for text in (*section.paragraphs, *section.points))


def test_each_page_has_all_sections():
    assert [page.name for page in pages().values() if tuple(each.title for each in page.sections) != TITLES] == []
    empty = [
        (page.name, each.title) for page in pages().values() for each in page.sections if not each.paragraphs + each.points
    ]
    assert empty == []


def test_sentences_are_short_and_whole():
    sentences = [(name, each) for name, _, text in texts() for each in re.split(r"(?<=[.!?]) (?=[A-Z`])", text)]
    assert [each for each in sentences if len(each[1]) >= 300] == []
    assert [(name, text) for name, _, text in texts() if not text.endswith(".") or "{" in text.split("`")[0]] == []


def test_every_field_of_a_rule_or_check_is_explained():
    criteria: list[Criterion] = [*DEFAULT_RULES, *DEFAULT_CHECKS]
    common = {"severity", "patience", "warmup", "every_n_steps", "enabled"}
    missing = [
        (each.name, field)
        for each in criteria
        for field in set(each.option_names) - common
        if not any(f"`{field}` = " in text for name, title, text in texts() if (name, title) == (each.name, TITLES[2]))
    ]
    assert missing == []
