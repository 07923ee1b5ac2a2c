"""The view of a row beside other tensors and other runs."""

import pytest

from .browser import colors_of, needs_browser, opened, serving
from .runs import NAMES, write_run

pytestmark = [needs_browser, pytest.mark.slow]

FIRST, SECOND, THIRD = "31,79,209", "196,43,28", "11,122,91"  # of the lines of a chart
CHART = "document.querySelector('.card canvas')"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_run(folder / "a", range(20))
    write_run(folder / "a", range(20), tensor="param")
    write_run(folder / "a", range(20), tensor="output", names=("net.0", "head"))
    write_run(folder / "b", range(20), names=NAMES[1:])
    write_run(folder / "c", range(20), change=lambda step, values: values["norm"].fill(9.0))
    with serving(folder) as where:
        yield where


def test_a_row_leads_to_what_belongs_to_it(browser, url):
    with opened(browser, f"{url}#run=a&view=row&tensor=grad&stat=norm&row={NAMES[0]}") as page:
        page.wait_for_selector(f"h2:has-text('Gradient of {NAMES[0]}')")
        assert page.locator(".card h3").first.inner_text().startswith("Norm")
        page.get_by_label("Statistic", exact=True).select_option("std")
        page.wait_for_selector(".card:first-child h3:has-text('std')")
        page.get_by_role("button", name="its output").click()
        page.wait_for_selector("h2:has-text('Output of net.0')")
        assert page.get_by_role("button", name="its grad").count() == 0
        page.evaluate("([row]) => lightningHooks.state.set({ tensor: 'grad', row })", [NAMES[2]])
        page.wait_for_selector(f"h2:has-text('Gradient of {NAMES[2]}')")
        assert page.get_by_role("button", name="its output").count() == 0  # net.2 is not watched
        page.get_by_role("button", name="its param").click()
        page.wait_for_selector(f"h2:has-text('Parameter of {NAMES[2]}')")
        page.evaluate("() => lightningHooks.state.set({ row: 'elsewhere' })")
        page.wait_for_selector("text=elsewhere is not in this table")
        page.get_by_role("button", name=NAMES[0]).click()
        page.wait_for_selector(f"h2:has-text('Parameter of {NAMES[0]}')")


def test_steps_that_were_chosen_in_the_heat_map_are_said(browser, url):
    with opened(browser, f"{url}#run=a&view=row&tensor=grad&stat=norm&row={NAMES[0]}&from=5&to=10") as page:
        page.wait_for_selector("[role=img][aria-label*=': 5 points']")
        page.get_by_role("button", name="only steps 5 to 9: show all").click()
        page.wait_for_selector("[role=img][aria-label*=': 20 points']")
        assert page.get_by_role("button", name="show all").count() == 0
        page.evaluate("() => lightningHooks.state.set({ from: 0, to: 20 })")  # all of them, as of a table that has more
        page.get_by_role("button", name="after ▶").click()
        page.wait_for_selector(f"h2:has-text('Gradient of {NAMES[1]}')")
        assert page.get_by_role("button", name="show all").count() == 0


def test_each_run_keeps_its_colour(browser, url):
    with opened(browser, f"{url}#run=a&other=b%0Ac&view=row&tensor=grad&stat=norm&row={NAMES[0]}") as page:
        page.wait_for_selector(".card canvas")
        page.wait_for_timeout(100)
        keys = page.locator(".keys i").evaluate_all("(all) => all.map((i) => getComputedStyle(i).backgroundColor.slice(4, -1))")
        found = colors_of(page, CHART)
        assert [each.replace(" ", "") for each in keys[1:]] == [SECOND, THIRD]
        assert THIRD in found and SECOND not in found  # b does not have this row


def test_runs_with_other_steps_each_have_their_line_and_a_value_alone_a_point(browser, tmp_path):
    write_run(tmp_path / "one", [7])
    write_run(tmp_path / "sevens", range(3, 200, 7))
    write_run(tmp_path / "tens", range(0, 200, 10))
    row = f"view=row&tensor=grad&stat=norm&row={NAMES[0]}"
    with serving(tmp_path) as where:
        with opened(browser, f"{where}#run=tens&other=sevens&{row}") as page:
            page.wait_for_selector(".card canvas")
            page.wait_for_timeout(100)
            found = colors_of(page, CHART)
            assert found[FIRST] > 15 and found[SECOND] > 15
            page.locator(".u-over").first.hover(position={"x": 1, "y": 20})
            assert page.locator(".chart-value").first.inner_text().endswith("; sevens –")
        with opened(browser, f"{where}#run=one&{row}") as page:
            page.wait_for_selector(".card canvas")
            page.wait_for_timeout(100)
            assert colors_of(page, CHART)[FIRST] > 3


@pytest.mark.parametrize("width", [360, 1280])
def test_explanations_and_long_names_stay_in_the_window(browser, tmp_path, width):
    names = [f"encoder.layers.{i}." + "a_very_long_name_" * 8 for i in range(8)]
    write_run(tmp_path, range(3), names=names)
    with serving(tmp_path) as where:
        for view in ("overview", "map", "row", "step"):
            with opened(browser, f"{where}#view={view}", viewport={"width": width, "height": 700}) as page:
                page.wait_for_selector("header button.question, .card button.question")
                for button in page.locator("button.question").all():
                    button.click()
                    box = page.locator(".help:visible").bounding_box()
                    assert box["x"] >= 0 and box["x"] + box["width"] <= width
                    button.press("Escape")
                assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), view


def test_a_second_monitor_is_linked_only_where_it_measures_more(browser, tmp_path):
    for tensor in ("grad", "param"):
        write_run(tmp_path, range(9), tensor=tensor)
    write_run(tmp_path, range(9), tensor="param", prefix="health/")
    write_run(tmp_path, range(9), tensor="grad", prefix="health/", stats=("norm", "count"))
    write_run(tmp_path, range(9), tensor="update", prefix="health/", stats=("norm", "count"))
    with serving(tmp_path) as url, opened(browser, f"{url}#view=row&tensor=grad&stat=norm&row={NAMES[0]}") as page:
        page.wait_for_selector("button:has-text('in the heat map')")
        links = page.get_by_role("button", name="its ").all_inner_texts()
        assert sorted(links) == ["its health/update", "its param"]
