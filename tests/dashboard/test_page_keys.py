"""The keys of the page work after a choice in a list and without the focus on a picture; one of them shows all."""

import pytest

from .browser import drawn, needs_browser, opened, serving
from .runs import write_run

pytestmark = [needs_browser, pytest.mark.slow]

MAP = "view=map&tensor=grad&stat=norm&folded=%2B"
SPAN = "() => (({ from, to }) => to - from)(lightningHooks.range())"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    for name in ("a", "b", "c"):
        write_run(folder / name, range(100))
    with serving(folder) as where:
        yield where


def test_keys_act_on_the_map_without_a_click_on_it_and_after_a_choice_in_a_list(browser, url):
    with opened(browser, f"{url}#run=b&{MAP}") as page:
        drawn(page)
        page.keyboard.press("+")
        page.wait_for_function(f"() => ({SPAN})() === 50")
        statistic = page.get_by_label("Statistic", exact=True)
        statistic.focus()
        statistic.select_option("std")
        drawn(page)
        page.keyboard.press("0")  # the list still has the focus, which no digit moves
        page.wait_for_function(f"() => ({SPAN})() === 100")
        assert statistic.input_value() == "std"
        # A list that was opened with the pointer gives the focus back.
        rows = page.get_by_label("Colours by")
        rows.focus()
        rows.dispatch_event("pointerdown")
        rows.select_option("one")
        page.wait_for_function("() => document.activeElement === document.body")
        page.keyboard.press("ArrowDown")
        page.wait_for_function("() => lightningHooks.views.map.panels[0].cursor?.r === 1")
        page.get_by_label("Show only rows").focus()
        for key in "0?n":
            page.keyboard.press(key)
        assert page.get_by_label("Show only rows").input_value() == "0?n" and not page.locator(".key-list").is_visible()


def test_runs_are_stepped_through_and_a_key_shows_all_keys(browser, url):
    with opened(browser, f"{url}#run=b&{MAP}") as page:
        drawn(page)
        page.keyboard.press("n")
        page.wait_for_function("() => lightningHooks.views.map.panels[0].model.run === 'c'")
        page.keyboard.press("n")
        page.wait_for_selector("text=This is the last run.")
        for run in ("b", "a"):
            page.keyboard.press("p")
            page.wait_for_function("(run) => lightningHooks.state.run === run", arg=run)
        page.wait_for_function("() => !lightningHooks.pending")
        assert not page.locator(".message").is_visible()
        page.keyboard.press("?")
        listed = page.get_by_role("dialog", name="Keys")
        assert "the next run, the one before" in listed.inner_text() and "show all steps" in listed.inner_text()
        page.keyboard.press("4")
        page.keyboard.press("Escape")
        assert not listed.is_visible() and page.evaluate("() => lightningHooks.state.view") == "map"


def test_a_skeleton_stands_in_place_of_a_view_that_loads(browser, url):
    with opened(browser, f"{url}#run=a") as page:
        page.wait_for_selector("h2:has-text('Over all layers')")
        held = []
        page.route("**/data/rows*", lambda route: held.append(route))
        page.evaluate("() => lightningHooks.state.set({ view: 'map', stat: 'std' })")
        page.wait_for_selector(".skeleton")
        assert page.locator("main").get_attribute("aria-busy") == "true"
        for route in held:
            route.continue_()
        drawn(page)
        page.wait_for_selector(".skeleton", state="hidden")
