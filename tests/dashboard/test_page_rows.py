"""The view of a row beside other tensors and other runs."""

import pytest

from .browser import needs_browser, opened, serving
from .runs import NAMES, write_run

pytestmark = [needs_browser, pytest.mark.slow]

SECOND, THIRD = "196,43,28", "11,122,91"  # of the lines of a chart


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
        page.wait_for_selector(f"h2:has-text('grad of {NAMES[0]}')")
        assert page.locator(".card h3").first.inner_text().startswith("norm")
        page.get_by_label("Statistic", exact=True).select_option("std")
        page.wait_for_selector(".card:first-child h3:has-text('std')")
        page.get_by_role("button", name="its output").click()
        page.wait_for_selector("h2:has-text('output of net.0')")
        assert page.get_by_role("button", name="its grad").count() == 0
        page.evaluate("([row]) => lightningHooks.state.set({ tensor: 'grad', row })", [NAMES[2]])
        page.wait_for_selector(f"h2:has-text('grad of {NAMES[2]}')")
        assert page.get_by_role("button", name="its output").count() == 0  # net.2 is not watched
        page.get_by_role("button", name="its param").click()
        page.wait_for_selector(f"h2:has-text('param of {NAMES[2]}')")
        page.evaluate("() => lightningHooks.state.set({ row: 'elsewhere' })")
        page.wait_for_selector("text=elsewhere is not in this table")
        page.get_by_role("button", name=NAMES[0]).click()
        page.wait_for_selector(f"h2:has-text('param of {NAMES[0]}')")


def test_each_run_keeps_its_colour(browser, url):
    with opened(browser, f"{url}#run=a&other=b%0Ac&view=row&tensor=grad&stat=norm&row={NAMES[0]}") as page:
        page.wait_for_selector(".card canvas")
        page.wait_for_timeout(100)
        keys = page.locator(".keys i").evaluate_all("(all) => all.map((i) => getComputedStyle(i).backgroundColor.slice(4, -1))")
        found = page.evaluate(
            """() => {
            const canvas = document.querySelector(".card canvas");
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const found = new Set();
            for (let i = 0; i < data.length; i += 4) found.add([data[i], data[i + 1], data[i + 2]].join(","));
            return [...found];
          }"""
        )
        assert [each.replace(" ", "") for each in keys[1:]] == [SECOND, THIRD]
        assert THIRD in found and SECOND not in found  # b does not have this row
