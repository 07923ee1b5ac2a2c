"""The usual ranges of statistics, as data and in the curves of the page."""

import numpy as np
import pytest
from werkzeug.test import Client

from lightning_hooks.dashboard.api import Api
from lightning_hooks.dashboard.explanations import EXPLANATIONS
from lightning_hooks.dashboard.ranges import USUAL_RANGES
from lightning_hooks.dashboard.report import write_report
from lightning_hooks.dashboard.runs import LocalRuns
from lightning_hooks.dashboard.site import Site
from lightning_hooks.health.rules.dead import DeadUnits
from lightning_hooks.health.rules.updates import UpdateTooLarge

from .browser import colors, drawn, needs_browser, opened, place, serving, texts_of_the_picture
from .runs import NAMES, write_run
from .test_page_maps import AROUND

USUAL = "15,157,118"  # the colour inside of a range
# How many pixels of the first chart are tinted by the band: greenish, and nearly transparent.
TINTED = """() => {
  const canvas = document.querySelector(".card canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const isTinted = (i) => data[i + 3] > 20 && data[i + 3] < 60 && data[i + 1] > data[i];
  return data.filter((_, i) => i % 4 === 0 && isTinted(i)).length;
}"""


@pytest.mark.parametrize("usual", USUAL_RANGES, ids=lambda each: each.stat)
def test_a_range_is_in_order_and_has_a_source_and_a_statistic(usual):
    assert usual.low < usual.high and (usual.typical is None or usual.low <= usual.typical <= usual.high)
    assert len(usual.source) > 20
    assert usual.stat in EXPLANATIONS


def test_a_range_ends_where_a_health_rule_begins_to_warn():
    ends = {(each.stat, tensor): each.high for each in USUAL_RANGES for tensor in each.tensors or ("",)}
    assert ends["ratio", "update"] == ends["run/update_ratio", ""] == UpdateTooLarge.most
    assert ends["dead_units", "output"] == DeadUnits.at_start


def test_a_statistic_has_one_range_for_a_tensor():
    keys = [(each.stat, tensor) for each in USUAL_RANGES for tensor in each.tensors or ("",)]
    assert len(keys) == len({*keys})


def test_the_page_gets_the_ranges(tmp_path):
    found = Client(Site(Api(LocalRuns(tmp_path)))).get("/data/ranges").json
    assert found[0]["stat"] == "ratio" and found[0]["tensors"] == ["update"]
    assert (found[0]["low"], found[0]["typical"], found[0]["high"]) == (1e-4, 1e-3, 1e-1)


@needs_browser
@pytest.mark.slow
def test_curves_show_the_usual_range_with_its_source(browser, tmp_path):
    write_run(tmp_path / "run", range(20))
    write_run(tmp_path / "run", range(20), prefix="mine/")
    write_report(tmp_path / "run", tmp_path / "report.html")
    with serving(tmp_path / "run") as url:
        for where in (url, (tmp_path / "report.html").as_uri()):
            for tensor in ("grad", "mine%2Fgrad"):
                with opened(browser, f"{where}#view=row&tensor={tensor}&stat=zero_fraction&row=head.weight") as page:
                    page.wait_for_selector(".card canvas")
                    page.wait_for_timeout(100)
                    usual = page.locator(".usual")
                    assert usual.count() == 1  # of six statistics one has a published range
                    assert usual.inner_text() == "usual 0 to 0.7 ?"
                    usual.get_by_label("Where is the usual range from?").press("Enter")
                    said = "Where the usual range is from: below 0.7: AutoTrainer (ICSE 2021), dying ReLU."
                    assert usual.locator(".source").inner_text() == said
                    tinted = page.evaluate(TINTED)
                    assert tinted > 200


@needs_browser
@pytest.mark.slow
def test_the_map_is_coloured_against_the_usual_range(browser, tmp_path):
    def share(step, values):
        values["zero_fraction"][:] = 0.5, 0.9, 0.1, 0.69

    write_run(tmp_path, range(10), change=share)
    with serving(tmp_path) as url, opened(browser, f"{url}#view=map&tensor=grad&stat=zero_fraction&folded=%2B") as page:
        drawn(page)
        page.get_by_label("Colours", exact=True).select_option("against usual")
        page.wait_for_selector(".usual-key:has-text('✓ usual, 0 to 0.7')")
        keys = page.locator(".usual-key").all_inner_texts()
        assert [each.strip() for each in keys] == ["▲ above 0.7", "✓ usual, 0 to 0.7"]
        assert page.locator(".legend .source").inner_text() == "below 0.7: AutoTrainer (ICSE 2021), dying ReLU"
        drawn(page)
        found = colors(page)
        assert found[USUAL] > 2 * sum(found.get(each, 0) for each in ("196,71,9", "196,71,10")) > 0
        written = texts_of_the_picture(page)
        assert {"▲ above 0.7", "✓ usual, 0 to 0.7", "NaN", "exactly 0"} <= {*written}
        page.get_by_label("Statistic", exact=True).select_option("norm")  # has no published range
        page.wait_for_selector("text=No usual range of grad norm is published, so its own colours are shown.")
        page.wait_for_selector(".bar")
        drawn(page)
        assert USUAL not in colors(page)


@needs_browser
@pytest.mark.slow
def test_the_map_is_coloured_against_the_compared_run(browser, tmp_path):
    def norms(*factors):
        def change(step, values):
            values["norm"][:] = np.array([100, 1, 7, 0.1]) * factors

        return change

    write_run(tmp_path / "sick", range(20), change=norms(50, 1.5, 0.02, 0))
    write_run(tmp_path / "sound", range(20), change=norms(1, 1, 1, 1))
    where = "view=map&tensor=grad&stat=norm&folded=%2B"
    with serving(tmp_path) as url, opened(browser, f"{url}#run=sick&{where}") as page:
        drawn(page)
        page.get_by_label("Colours", exact=True).select_option("against a run")
        page.wait_for_selector("text=No run to compare with is chosen, so the default colours are shown")
        page.get_by_label("Compare with").select_option("sound")
        page.wait_for_selector(".usual-key")
        drawn(page)
        keys = [each.strip() for each in page.locator(".usual-key").all_inner_texts()]
        assert keys == ["▲ more than 2 times as large", "✓ as in sound, within a factor of 2", "▼ less than half as large"]
        assert page.locator(".panel-title").inner_text() == "sick against sound"
        page.get_by_role("button", name="Colours …").click()
        assert page.get_by_label("Scale", exact=True).is_visible()
        assert not page.get_by_label("Comparison").is_visible()  # such a map is always one of ratios
        page.get_by_role("button", name="Colours …").click()
        [vermilion], [green], [orange], infinite = (page.evaluate(AROUND, place(page, name, 10)) for name in NAMES)
        assert green == USUAL and "0,214,255" in infinite
        # From light to dark, so that the three differ without colours.
        assert lightness(orange) > 1.3 * lightness(green) > 1.5 * lightness(vermilion)
        page.mouse.move(*place(page, NAMES[0], 10))
        assert page.locator(".tip").inner_text().endswith("ratio of grad norm: 50 times (log₂ 5.644)")
        page.get_by_label("Statistic", exact=True).select_option("mean")  # has no ratios
        page.wait_for_selector("text=Values of grad mean can be negative, so they have no ratio to those of another run")
        page.wait_for_selector(".bar")
        page.get_by_role("button", name="Colours …").click()
        assert page.get_by_label("Comparison").is_visible()


@needs_browser
@pytest.mark.slow
def test_the_overview_shows_the_usual_range_of_the_update_ratio(browser, tmp_path):
    write_run(tmp_path, range(20), scalars={"run/update_ratio": 0.5})
    with serving(tmp_path) as url, opened(browser, url) as page:
        card = page.locator(".card", has_text="run/update_ratio")
        card.locator("canvas").wait_for()
        assert card.locator(".usual").inner_text() == "often 0.001, usual 0.0001 to 0.1 ?"
        assert page.locator(".usual").count() == 1  # the other curves have no published range


def lightness(color):
    """The grey to which a colour comes down, from 0 to 255."""
    return np.dot([0.2126, 0.7152, 0.0722], [int(each) for each in color.split(",")])
