"""The page in a real browser: every control, and every run that is not as one would wish."""

import json

import numpy as np
import pytest

from lightning_hooks.dashboard.report import write_report

from .browser import colors, drawn, needs_browser, opened, place, serving
from .runs import NAMES, write_run

pytestmark = [needs_browser, pytest.mark.slow]

SHOWN = "() => (({ shown, rows }) => shown.map((n) => rows.nodes[n].name))(lightningHooks.views.map.panels[0].model)"
NAN = "255,0,220"
NASTY = ("<img src=x onerror=alert(1)>.w", "quo\"te's/and\\slashes.w", "שלום.weight", "a&amp;b.w")
FINDING = {"rule": "NonFinite", "severity": "error", "verdict": "NaN in a gradient", "tensor": "grad", "stat": "norm"}


def nan_from_37(step, values):
    if step >= 37:
        for stat in ("mean", "std", "norm"):
            values[stat][1] = np.nan
        values["nonfinite"][1] = 5


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_run(folder / "good", range(100), histograms=True)
    write_run(folder / "nan", range(100), change=nan_from_37)
    (folder / "nan" / "findings.jsonl").write_text(json.dumps({**FINDING, "name": NAMES[1], "step": 37}) + "\n")
    write_run(folder / "nasty", range(20), names=NASTY)
    many = [f"blocks.{i // 50}.layer{i % 50}.weight" for i in range(5000)]
    write_run(folder / "many", range(12), names=many)
    return folder


@pytest.fixture(scope="module")
def url(logdir):
    with serving(logdir) as where:
        yield where


def state(page):
    return page.evaluate("() => Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")


def test_the_overview_leads_to_the_layer_and_the_step(browser, url):
    with opened(browser, f"{url}#run=nan") as page:
        page.wait_for_selector("text=NaN or infinite numbers in 1 tensor, the first at step 37.")
        assert page.locator(".finding", has_text="NaN in a gradient").is_visible()
        page.locator("button.link", has_text="net.0.bias, step 37").first.click()
        drawn(page)
        assert state(page)["row"] == NAMES[1] and state(page)["step"] == "37" and state(page)["view"] == "map"
        page.wait_for_selector(".picked >> text=▼ NaN in a gradient")
        assert page.locator(".legend >> text=finding").is_visible()
        page.get_by_role("button", name="Fold all parts", exact=True).click()
        drawn(page)
        page.mouse.move(*place(page, "net", 37))
        assert "▼ NaN in a gradient" in page.locator(".tip").inner_text()
        page.evaluate("() => lightningHooks.state.set({ row: 'elsewhere' })")
        page.wait_for_selector("text=elsewhere is not in this table.")
    with opened(browser, f"{url}#run=good") as page:
        page.wait_for_selector("text=No NaN or infinite number in: ")
        assert page.locator(".card h3").first.inner_text().startswith("Gradient norm ?")


def test_the_loss_is_the_strip_of_the_overview(browser, tmp_path):
    write_run(tmp_path, range(40), scalars={"run/loss": 0.25, "run/final_grad_norm": 1.0})
    with serving(tmp_path) as url, opened(browser, url) as page:
        page.wait_for_selector("h2:has-text('Over all layers')")
        titles = [title.partition("?")[0].strip() for title in page.locator(".card h3").all_inner_texts()]
        assert titles == ["Gradient norm", "Gradient norm after clipping"]
        assert [each.strip() for each in page.locator(".card h3 .tag").all_inner_texts()] == [
            "run/grad_norm",
            "run/final_grad_norm",
        ]
        assert page.locator(".strip-readout").inner_text() == "step 39: 0.25"
        page.get_by_role("button", name="What does this curve mean?").click()
        assert page.locator("text=The mean of the losses of the step").is_visible()


@pytest.mark.filterwarnings("ignore:.*what follows byte .* is damaged")
def test_the_overview_says_what_could_not_be_read(browser, tmp_path):
    write_run(tmp_path / "run", range(5))
    (file,) = (tmp_path / "run").glob("*tfevents*")
    end = file.stat().st_size
    with file.open("ab") as damaged:
        damaged.write(b"<b>noise</b>" * 3)
    with serving(tmp_path) as url, opened(browser, url) as page:
        page.wait_for_selector("text=What could not be read")
        said = [f"{file.name}: what follows byte {end} is damaged and is not read"]
        assert page.locator(".problems li").all_inner_texts() == said


def test_nan_is_unmistakable_and_hovering_says_what_is_there(browser, url):
    with opened(browser, f"{url}#run=nan&view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        assert colors(page)[NAN] > 500
        page.mouse.move(*place(page, NAMES[1], 50))
        assert page.locator(".tip").inner_text().split("\n") == [
            NAMES[1],
            "step 50",
            "grad norm: NaN",
        ]
        page.mouse.move(*place(page, NAMES[1], 36))
        assert "NaN" not in page.locator(".tip").inner_text() and "grad norm: " in page.locator(".tip").inner_text()
    with opened(browser, f"{url}#run=good&view=map&tensor=grad&stat=norm") as page:
        drawn(page)
        assert NAN not in colors(page)


def test_folding_shows_the_exact_aggregate(browser, url):
    with opened(browser, f"{url}#run=good&view=map&tensor=grad&stat=norm&folded=-") as page:
        drawn(page)
        page.mouse.move(*place(page, "net", 7))
        text = page.locator(".tip").inner_text()
        assert "net (3 rows)" in text and "merged exactly" in text
        page.mouse.click(*place(page, "net", None))
        drawn(page)
        assert NAMES[0] in page.evaluate(SHOWN) or "net.0" in page.evaluate(SHOWN)
        page.get_by_role("button", name="Unfold all parts").click()
        drawn(page)
        assert {*NAMES} <= {*page.evaluate(SHOWN)}
        page.get_by_role("button", name="Fold all parts", exact=True).click()
        drawn(page)
        assert page.evaluate(SHOWN) == ["net", "head.weight"]


def test_every_control_of_the_heat_map(browser, url):
    with opened(browser, f"{url}#run=good&view=map") as page:
        drawn(page)
        before = colors(page)
        page.get_by_label("Colours", exact=True).select_option("cividis")
        drawn(page)
        assert colors(page) != before
        for scale in ("linear", "log", "symlog"):
            page.get_by_label("Scale", exact=True).select_option(scale)
            drawn(page)
            assert page.evaluate("() => lightningHooks.views.map.scale.kind") == scale
        page.get_by_label("Least value of the colours").fill("0.5")
        page.get_by_label("Greatest value of the colours").fill("2")
        page.keyboard.press("Enter")
        page.wait_for_function("() => lightningHooks.views.map.scale.low === 0.5 && lightningHooks.views.map.scale.high === 2")
        page.get_by_label("Least value of the colours").fill("3")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=The colours go from a lesser to a greater value, not from 3 to 2.")
        page.get_by_label("Least value of the colours").fill("0.5")
        page.keyboard.press("Enter")
        page.wait_for_function("() => lightningHooks.views.map.scale.low === 0.5 && lightningHooks.views.map.scale.high === 2")
        page.get_by_label("Show only rows whose name matches").fill("*.weight !head*")
        drawn(page)
        assert page.evaluate(SHOWN) == ["net.0.weight", "net.2.weight"]
        for pattern in ("re:net\\.[0-9]{1,2}\\.w.*", "net.0.weight,net.2.w*"):  # a regular expression may have commas in it
            page.get_by_label("Show only rows whose name matches").fill(pattern)
            drawn(page)
            assert page.evaluate(SHOWN) == ["net.0.weight", "net.2.weight"]
        page.get_by_label("Show only rows whose name matches").fill("re:(")
        page.wait_for_selector("text=re:( is no regular expression")
        page.get_by_label("Show only rows whose name matches").fill("nothing")
        page.wait_for_selector("text=No row matches nothing.")
        page.get_by_label("Show only rows whose name matches").fill("")
        page.get_by_role("button", name="Show fewer steps").click()
        drawn(page)
        assert (state(page)["from"], state(page)["to"]) == ("25", "75")
        page.get_by_role("button", name="Later steps").click()
        page.get_by_role("button", name="Earlier steps").click()
        page.get_by_role("button", name="Show more steps").click()
        page.get_by_role("button", name="Show all steps").click()
        drawn(page)
        assert "from" not in state(page)
        page.get_by_label("fit the window").uncheck()
        drawn(page)
        page.get_by_label("Statistic", exact=True).select_option("std")
        drawn(page)
        titles = """async () => {
          const { drawLegend } = await import("/static/legend.js"), { makeScale } = await import("/static/colors.js");
          return ["std", "p99.9", "abs_max", "per_step", "my_fraction"].map((stat) => {
            const legend = document.createElement("div");
            drawLegend(legend, { tensor: "grad", stat, map: "viridis", marks: [] }, makeScale("linear", 0, 1, 1, false));
            return legend.querySelector(".legend-title").textContent;
          });
        }"""
        known = [f"grad {stat} (units of the tensor)" for stat in ("std", "p99.9", "abs_max")]
        assert page.evaluate(titles) == [*known, "grad per_step", "grad my_fraction"]
        page.get_by_role("button", name="What does this statistic mean?").click()
        assert page.locator(".help:visible").inner_text().startswith("std")
        assert "What is usual" in page.locator(".help:visible").inner_text()


def test_the_picture_and_the_table_are_saved(browser, url, tmp_path):
    with opened(browser, f"{url}#run=nan&view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Save the picture").click()
        waiting.value.save_as(tmp_path / "map.png")
        assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Save what is visible").click()
        waiting.value.save_as(tmp_path / "map.csv")
        lines = (tmp_path / "map.csv").read_text().splitlines()
        assert lines[0] == "run,name,first_step,last_step,least,greatest,nan,infinite"
        assert len(lines) == 1 + 4 * 100
        assert '"nan","net.0.bias",40,40,NaN,NaN,1,0' in lines


def test_the_keyboard_and_what_a_screen_reader_hears(browser, url):
    with opened(browser, f"{url}#run=good&view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        canvas = page.get_by_role("application")
        canvas.focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
            canvas.press(key)
        said = page.locator(".panel [aria-live]").inner_text()
        assert "step 2" in said and "grad norm: " in said
        canvas.press("+")
        drawn(page)
        assert state(page)["to"] != ""
        canvas.press("0")
        drawn(page)
        assert "to" not in state(page)
        canvas.press("Enter")
        page.wait_for_selector("h2:has-text('Gradient of ')")
        assert state(page)["view"] == "row"
        page.keyboard.press("Escape")
        tab = page.get_by_role("tab", name="Row")
        tab.focus()
        tab.press("ArrowRight")
        assert state(page)["view"] == "step"
        assert page.get_by_role("tab", name="Step").get_attribute("aria-selected") == "true"
        page.get_by_role("tabpanel", name="Step").locator("h2").wait_for()
        tabs = page.get_by_role("tab").evaluate_all("(all) => all.map((tab) => tab.tabIndex)")
        assert tabs == [-1, -1, -1, -1, 0, -1]
        page.keyboard.press("Alt+1")  # of the browser or the system
        assert state(page)["view"] == "step"
        page.keyboard.press("2")
        assert state(page)["view"] == "map"


def test_the_address_is_the_view(browser, url):
    with opened(browser, f"{url}#run=good&view=map&stat=std&tensor=grad&map=cividis&from=20&to=60&filter=net*") as page:
        drawn(page)
        first = (state(page), colors(page))
        page.reload()
        drawn(page)
        assert (state(page), colors(page)) == first
        for beyond in ("from=-1e30&to=1e30", "from=1e30", "from=Infinity&to=-5", "from=x&to=y"):
            page.evaluate("(beyond) => { location.hash = `run=good&view=map&tensor=grad&stat=norm&${beyond}`; }", beyond)
            page.wait_for_function(
                "() => (({ model }) => model.from === 0 && model.to === 100)(lightningHooks.views.map.panels[0])"
            )
            drawn(page)
        page.evaluate("() => { location.hash = 'run=nan&view=step&step=12'; }")
        page.wait_for_selector("text=at step 12")
        page.evaluate("() => { location.hash = 'run=nan&view=constructor&map=constructor&scale=none'; }")
        page.wait_for_selector("h2:has-text('Over all layers')")
        page.get_by_role("tab", name="Heat map").click()
        drawn(page)


def test_back_and_forward_lead_through_the_views(browser, url):
    with opened(browser, f"{url}#run=good") as page:
        page.wait_for_selector(".card canvas")
        page.get_by_role("tab", name="Heat map").click()
        drawn(page)
        page.get_by_label("Statistic", exact=True).select_option("std")
        drawn(page)
        page.mouse.click(*place(page, NAMES[0], 5))
        page.get_by_role("button", name="This row").click()
        page.wait_for_selector(f"h2:has-text('Gradient of {NAMES[0]}')")
        page.get_by_role("button", name="after ▶").click()
        page.wait_for_selector(f"h2:has-text('Gradient of {NAMES[1]}')")
        page.go_back()
        page.wait_for_selector(f"h2:has-text('Gradient of {NAMES[0]}')")
        page.go_back()
        page.wait_for_selector(".legend-title >> text=grad std")
        assert state(page)["view"] == "map" and page.locator("main .map-view").is_visible()
        page.go_back()
        page.wait_for_selector("h2:has-text('Over all layers')")
        page.go_forward()
        page.wait_for_selector(".legend-title >> text=grad std")


def test_two_runs_side_by_side_and_as_a_difference(browser, url):
    with opened(browser, f"{url}#run=good&view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        page.get_by_label("Compare with").select_option("nan")
        page.wait_for_function("() => lightningHooks.views.map.panels.length === 2")
        drawn(page)
        assert [each.inner_text() for each in page.locator(".panel-title").all()] == ["good", "nan"]
        page.wait_for_function("() => lightningHooks.views.map.panels[1].drawn")
        page.get_by_role("button", name="Colours …").click()
        page.get_by_label("Comparison").select_option("difference")
        drawn(page)
        assert page.locator(".panel-title").inner_text() == "log₂ of good / nan"
        assert page.locator(".legend-title").inner_text() == "log₂ of the ratio of grad norm"
        page.get_by_label("Difference as").select_option("linear")
        drawn(page)
        assert page.locator(".panel-title").inner_text() == "good − nan"
        assert page.locator(".legend-title").inner_text().startswith("difference of grad norm")
        assert page.get_by_label("Colours", exact=True).input_value() == "diverging"
        page.mouse.move(*place(page, NAMES[0], 10))
        assert "difference of grad norm: 0" in page.locator(".tip").inner_text()
        assert colors(page)[NAN] > 500
        page.get_by_label("Compare with").select_option("nasty")
        page.wait_for_selector("text=Not shown: 4 rows that only nasty has.")


def test_four_runs_at_a_time(browser, url):
    with opened(browser, f"{url}#run=good&view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        page.get_by_label("Compare with").select_option("nan")
        page.get_by_label("and with").select_option("nasty")
        page.wait_for_function(
            "() => lightningHooks.views.map.panels.length === 3 &&"
            " lightningHooks.views.map.panels.every((panel) => panel.drawn && panel.model.scale)"
        )
        assert state(page)["other"] == "nan\nnasty"
        assert page.get_by_label("and with").count() == 2  # as there is a fourth run
        scales = page.evaluate(
            "() => lightningHooks.views.map.panels.map((panel) => [panel.model.scale.low, panel.model.scale.high])"
        )
        assert scales[0] == scales[1] == scales[2]
        page.get_by_role("tab", name="Row").click()
        page.wait_for_selector(".keys >> text=nan")


def test_a_row(browser, url):
    with opened(browser, f"{url}#run=good&view=row&tensor=grad&stat=norm&row=net.2.weight") as page:
        page.wait_for_selector("h2:has-text('Gradient of net.2.weight')")
        page.wait_for_selector(".card canvas")
        assert page.locator(".card").count() == 6
        assert page.locator("canvas.histogram").get_attribute("aria-label").startswith("Histogram at 60 steps from 0 to 99")
        page.locator("button", has_text="after ▶").click()
        page.wait_for_selector("h2:has-text('Gradient of head.weight')")
        page.locator(".card button.question").first.click()
        assert page.locator(".help:visible").count() == 1
        page.get_by_role("button", name="in the heat map").click()
        drawn(page)
    with opened(browser, f"{url}#run=nan&view=row&tensor=grad&stat=norm&row={NAMES[1]}") as page:
        page.wait_for_selector("text=NaN at 63 steps, from step 37 on")
        assert page.locator("text=No histogram of this row").is_visible()


def test_a_step(browser, url):
    with opened(browser, f"{url}#run=nan&view=step&tensor=grad&stat=norm&step=50") as page:
        page.wait_for_selector("text=Gradient norm at step 50")
        canvas = page.get_by_role("application")
        canvas.focus()
        for _ in range(4):
            canvas.press("ArrowRight")
        assert page.locator("output").inner_text().startswith("net.0.weight: ")  # the first layer comes last
        canvas.press("ArrowLeft")
        assert page.locator("output").inner_text() == "net.0.bias: NaN"
        page.get_by_label("Second step").fill("10")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=compared with step 10")
        page.get_by_label("Order").select_option("forward")
        slider = page.get_by_role("slider", name="Step")
        slider.focus()
        slider.press("Home")
        page.wait_for_selector("text=Gradient norm at step 0")
        page.evaluate("() => lightningHooks.state.set({ filter: 'head.*' })")
        page.wait_for_selector("text=rows head.*")
        assert page.evaluate("() => lightningHooks.views.step.bars.map((bar) => bar.name)") == ["head.weight"]


def test_names_are_shown_as_text(browser, url):
    with opened(browser, f"{url}#run=nasty&view=map&tensor=grad&stat=norm&filter=*") as page:
        drawn(page)
        for name in NASTY:
            page.mouse.move(*place(page, name, 5))
            assert page.locator(".tip div").first.inner_text() == name
        page.evaluate("([name]) => lightningHooks.state.set({ view: 'row', row: name })", [NASTY[0]])
        page.wait_for_selector("h2:has-text('onerror')")
        assert page.locator("main img").count() == 0


def test_five_thousand_rows(browser, url):
    with opened(browser, f"{url}#run=many&view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        page.locator(".scroll").evaluate("(element) => { element.scrollTop = element.scrollHeight; }")
        page.wait_for_timeout(100)
        drawn(page)
        page.mouse.move(*place(page, "blocks.99.layer49.weight", 5))
        assert page.locator(".tip div").first.inner_text() == "blocks.99.layer49.weight"
        page.get_by_role("tab", name="Step").click()
        page.wait_for_selector("text=Gradient norm at step 11")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (3840, "light")])
def test_small_and_large_screens(browser, url, width, scheme):
    viewport = {"width": width, "height": max(width * 9 // 16, 640)}
    with opened(browser, f"{url}#run=good&view=map", viewport=viewport, color_scheme=scheme) as page:
        for view in ("map", "overview", "row", "step", "sheet"):
            page.evaluate("(view) => lightningHooks.state.set({ view })", view)
            page.wait_for_timeout(200)
            assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), view
        background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(22, 24, 29)" if scheme == "dark" else "rgb(255, 255, 255)")


def test_a_report_shows_the_same_without_a_server(browser, logdir, tmp_path):
    write_report(logdir / "nan", tmp_path / "report.html")
    where = (tmp_path / "report.html").as_uri()
    with opened(browser, f"{where}#view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        assert colors(page)[NAN] > 500
        page.mouse.move(*place(page, NAMES[1], 50))
        assert "grad norm: NaN" in page.locator(".tip").inner_text()
        for view in ("overview", "row", "step"):
            page.evaluate("(view) => lightningHooks.state.set({ view })", view)
            page.wait_for_timeout(150)
        assert page.title() == "nan: lightning_hooks"
