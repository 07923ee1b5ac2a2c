"""The picker of rows: fuzzy matching, the keyboard alone, and the row that the row view opens on."""

import json

import numpy as np
import pytest

from .browser import needs_browser, opened, serving
from .runs import NAMES, write_run

pytestmark = [needs_browser, pytest.mark.slow]

FUZZY = (
    "async ([query, names]) => (await import('./static/fuzzy.js')).ranked(query, names, (name) => name).map(({ item }) => item)"
)
TICKS = "async (values) => (await import('./static/ticks.js')).tickTexts(values)"
HOSTILE = "<img src=x onerror=alert(1)>.w"


def nan_from_5(step, values):
    if step >= 5:
        for stat in ("mean", "std", "norm"):
            values[stat][2] = np.nan
        values["nonfinite"][2] = 3


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_run(folder / "healthy", range(12))
    write_run(folder / "healthy", range(12), tensor="output", names=("net.0", "head"))
    write_run(folder / "nan", range(12), change=nan_from_5)
    write_run(folder / "sick", range(12))
    write_run(folder / "sick", range(12), tensor="output", names=("net.0", "head"))
    findings = [
        {"rule": "Small", "severity": "info", "verdict": "small", "tensor": "grad", "name": NAMES[3], "step": 1},
        {"rule": "Dead", "severity": "critical", "verdict": "net.0 is dead", "tensor": "output", "name": "net.0", "step": 4},
        {"rule": "Lost", "severity": "critical", "verdict": "of no row", "tensor": "output", "name": "elsewhere", "step": 0},
    ]
    (folder / "sick" / "findings.jsonl").write_text("".join(json.dumps(each) + "\n" for each in reversed(findings)))
    write_run(folder / "nasty", range(3), names=(HOSTILE, "plain.w"))
    with serving(folder) as where:
        yield where


def title(page):
    return page.locator("#panel h2").first.inner_text()


@pytest.mark.parametrize(
    ("query", "names", "expected"),
    [
        ("e0w", ["encoder.0.weight", "encoder.10.weight", "decoder.1.weight"], ["encoder.0.weight", "encoder.10.weight"]),
        ("EW", ["new.bias", "encoder.weight"], ["encoder.weight", "new.bias"]),  # beginnings of words count more
        ("head", ["h.e.a.d", "the_ad.x", "net.head"], ["net.head", "h.e.a.d", "the_ad.x"]),  # letters side by side count more
        ("weight 3", ["net.3.weight", "net.13.weight", "weight.4"], ["net.3.weight", "net.13.weight"]),
        ("b", ["abc.b.long_name", "a.b"], ["a.b", "abc.b.long_name"]),  # the shorter one first
        ("", ["z", "a"], ["z", "a"]),
        ("İ", ["İ.w", "plain"], ["İ.w"]),  # its lower case has two characters
        ("[.*", ["a.b", "[.*]"], ["[.*]"]),
    ],
)
def test_fuzzy_matching(browser, url, query, names, expected):
    with opened(browser, url) as page:
        assert page.evaluate(FUZZY, [query, names]) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0.5, 1], ["0", "0.5", "1"]),
        ([1.00001, 1.00002, 1.00003], ["1.00001", "1.00002", "1.00003"]),
        ([1e-9, 1.0000001e-9], ["1.0000000e-9", "1.0000001e-9"]),
        ([-1.00001, None, 1.00001, 1.00002], ["−1.00001", "", "1.00001", "1.00002"]),
        ([0.0005, 0.001, 0], ["0.0005", "0.001", "0"]),  # one style: all plain, or all powers of ten
        ([1e-5, 1e-3, 0.1, 10], ["1e-5", "1e-3", "1e-1", "1e1"]),
        ([0.25, 0.25], ["0.25", "0.25"]),  # the same number twice has the same text
    ],
)
def test_ticks_differ(browser, url, values, expected):
    with opened(browser, url) as page:
        assert page.evaluate(TICKS, values) == expected


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (["linear", 0, 1.36], [0, 0.5, 1]),
        (["linear", -0.3, 0.75], [-0.2, 0, 0.2, 0.4, 0.6]),
        (["linear", 0, 0], [0]),
        (["log", 9.23e-7, 44.55], [1e-6, 1e-4, 0.01, 1]),
        (["log", 2, 9], [2, 4, 6, 8]),  # within a decade the ticks are those of a linear scale
    ],
)
def test_ticks_are_round(browser, url, scale, expected):
    code = """async ([kind, low, high]) => (await import("./static/ticks.js")).roundTicks({ kind, low, high })"""
    with opened(browser, url) as page:
        assert page.evaluate(code, scale) == pytest.approx(expected, abs=1e-9)


def test_letters_typed_while_the_rows_are_read_are_kept(browser, url):
    with opened(browser, f"{url}#run=healthy") as page:
        page.wait_for_selector("h2:has-text('Over all layers')")
        waiting = []
        page.route("**/rows?*", lambda route: waiting.append(route))
        page.evaluate("window.lightningHooks.loaded.entries.get('healthy').tables.clear()")  # as if none was read yet
        with page.expect_request("**/rows?*"):
            page.keyboard.press("/")
        page.keyboard.type("hd out")
        assert page.get_by_role("combobox", name="Find a row").input_value() == "hd out"
        page.wait_for_selector("text=Reading the rows.")
        assert waiting
        for route in waiting:
            route.continue_()
        page.unroute("**/rows?*")
        page.wait_for_selector("[role=option]")
        assert page.locator("[role=option] .picker-name").all_inner_texts() == ["head"]


def test_the_picker_opens_again_at_once(browser, url):
    with opened(browser, f"{url}#run=healthy") as page:
        page.wait_for_selector("h2:has-text('Over all layers')")
        page.keyboard.press("/")
        page.wait_for_selector("[role=option]")
        # Nothing is drawn between these keys.
        were_open = page.evaluate("""() => ["Escape", "/"].map((key) => {
          document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
          return document.querySelector("dialog.picker").open;
        })""")
        assert were_open == [False, True]


def test_the_keyboard_alone_finds_a_row(browser, url):
    with opened(browser, f"{url}#run=healthy") as page:
        page.wait_for_selector("h2:has-text('Over all layers')")
        page.keyboard.press("/")
        page.wait_for_selector("text=6 rows")
        assert page.locator("dialog.picker[open] [role=option]").count() == 6  # four gradients and two outputs
        page.keyboard.type("hd out")
        assert page.locator("[role=option] .picker-name").all_inner_texts() == ["head"]
        page.keyboard.press("Enter")
        page.wait_for_selector("h2:has-text('Output of head')")
        assert page.locator("dialog.picker[open]").count() == 0
        page.keyboard.press("/")
        page.keyboard.type("w")
        page.wait_for_selector("[role=option]")
        names = page.locator("[role=option] .picker-name").all_inner_texts()
        page.keyboard.press("ArrowUp")  # from the first to the last
        page.keyboard.press("ArrowUp")
        chosen = page.locator("[role=option][aria-selected=true] .picker-name").inner_text()
        assert chosen == names[-2]
        active = page.get_by_role("combobox", name="Find a row").get_attribute("aria-activedescendant")
        assert page.locator(f"#{active} .picker-name").inner_text() == chosen
        page.keyboard.press("Escape")
        assert page.locator("dialog.picker[open]").count() == 0 and title(page).startswith("Output of head")
        page.keyboard.press("/")
        page.keyboard.type("qqq")
        page.wait_for_selector("text=No row has these letters in this order.")
        page.keyboard.press("Enter")  # there is nothing to open
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Find a row").click()
        page.locator("[role=option]", has_text="net.0.bias").click()
        page.wait_for_selector("h2:has-text('Gradient of net.0.bias')")
        page.keyboard.press("Shift+Tab")


def test_the_row_view_opens_on_what_is_worst(browser, url):
    with opened(browser, f"{url}#run=sick&view=row") as page:
        page.wait_for_selector("h2:has-text('Output of net.0')")  # of the worst finding, in its table
        page.wait_for_selector("text=▼ Since step 4: net.0 is dead")
        assert page.get_by_label("Tensor", exact=True).input_value() == "output"
        assert "row=net.0" in page.url  # so the view can be sent as a link
        page.get_by_label("Tensor", exact=True).select_option("grad")
        page.wait_for_selector("h2:has-text('Gradient of net.0.weight')")  # of the same module
    with opened(browser, f"{url}#run=sick&view=row&tensor=grad&stat=norm") as page:
        page.wait_for_selector("h2:has-text('Gradient of net.0.weight')")  # the address names the table, so it stays
    with opened(browser, f"{url}#run=nan&view=row") as page:
        page.wait_for_selector(f"h2:has-text('Gradient of {NAMES[2]}')")
    with opened(browser, f"{url}#run=healthy&view=row") as page:
        page.wait_for_selector(f"h2:has-text('Gradient of {NAMES[1]}'), h2:has-text('Gradient of {NAMES[0]}')")
        assert page.locator("main .note").count() == 0


def test_rows_with_findings_are_first_in_the_picker(browser, url):
    with opened(browser, f"{url}#run=sick&view=map") as page:
        page.wait_for_selector("canvas")
        page.locator("canvas").first.focus()
        page.keyboard.press("/")
        page.wait_for_selector("[role=option]")
        lines = [" ".join(each.split()) for each in page.locator("[role=option]").all_inner_texts()]
        assert lines[:2] == [f"{NAMES[3]} ▼ grad", "net.0 ▼ output"]


def test_names_in_the_picker_are_text(browser, url):
    with opened(browser, f"{url}#run=nasty&view=row&tensor=grad&stat=norm&row=plain.w") as page:
        page.wait_for_selector("h2:has-text('Gradient of plain.w')")
        page.keyboard.press("/")
        page.keyboard.type("img")
        page.wait_for_selector("[role=option]")
        assert page.locator("[role=option] .picker-name").all_inner_texts() == [HOSTILE]
        assert page.locator("dialog img").count() == 0
        page.keyboard.press("Enter")
        page.wait_for_selector("h2:has-text('onerror')")


def test_the_focus_stays_on_the_way_to_the_next_row(browser, url):
    with opened(browser, f"{url}#run=healthy&view=row&tensor=grad&stat=norm&row={NAMES[0]}") as page:
        page.get_by_role("button", name="after ▶").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(f"h2:has-text('Gradient of {NAMES[1]}')")
        page.keyboard.press("Enter")
        page.wait_for_selector(f"h2:has-text('Gradient of {NAMES[2]}')")
