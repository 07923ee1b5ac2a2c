"""The page while things happen: what it asks for and when, answers that come late, runs that change."""

import os
import shutil
import time

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks.dashboard.report import write_report

from .browser import drawn, needs_browser, opened, place, serving
from .runs import CLIPPED, NAMES, write_run, write_scalars

pytestmark = [needs_browser, pytest.mark.slow]
MAP = "view=map&tensor=grad&stat=norm&folded=%2B"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_run(folder / "a", range(40))
    write_run(folder / "a", range(40), tensor="param")
    write_run(folder / "b", range(60))
    return folder


@pytest.fixture(scope="module")
def url(logdir):
    with serving(logdir) as where:
        yield where


def test_a_map_that_nobody_touches_asks_for_nothing(browser, url, logdir, tmp_path):
    asked = []
    with opened(browser, f"{url}#run=a&{MAP}") as page:
        drawn(page)
        page.wait_for_timeout(200)
        page.on("request", lambda request: asked.append(request.url) if "/tile" in request.url else None)
        page.wait_for_timeout(800)
    assert not asked
    write_report(logdir / "a", tmp_path / "report.html")
    with opened(browser, f"{(tmp_path / 'report.html').as_uri()}#{MAP}") as page:
        drawn(page)
        page.wait_for_timeout(200)
        page.evaluate(
            """() => {
            const map = lightningHooks.views.map.panels[0];
            const draw = map.draw.bind(map);
            window.draws = 0;
            map.draw = () => { window.draws++; draw(); };
          }"""
        )
        page.wait_for_timeout(300)
        assert page.evaluate("() => window.draws") == 0


class Held:
    """Requests whose address has some text wait until they are let go."""

    def __init__(self, page, text):
        self.page, self.text, self.routes, self.are_held = page, text, [], True
        page.route(lambda url: text in url, lambda route: self.routes.append(route) if self.are_held else route.continue_())

    def let_go(self):
        assert self.routes, f"nobody asked for {self.text}"
        self.are_held = False
        for route in self.routes:
            route.continue_()
        self.page.wait_for_timeout(250)


def choose(page, label, value):
    page.get_by_label(label, exact=True).select_option(value)


def test_a_slow_answer_does_not_replace_a_later_choice(browser, url):
    with opened(browser, f"{url}#run=b&{MAP}") as page:
        drawn(page)
        held = Held(page, "/run?run=a")
        choose(page, "Run", "a")
        choose(page, "Run", "b")
        held.let_go()
        assert page.evaluate("() => lightningHooks.views.map.panels[0].model.run") == "b"
        choose(page, "Run", "a")
        drawn(page)
        held = Held(page, "tensor=param")
        choose(page, "Tensor", "param")
        choose(page, "Tensor", "grad")
        held.let_go()
        assert page.locator(".legend-title").inner_text().startswith("grad norm")
        page.evaluate("() => lightningHooks.state.set({ view: 'step', step: 30 })")
        page.wait_for_selector("text=Gradient norm at step 30")
        held = Held(page, "first=10&")
        page.evaluate("() => lightningHooks.state.set({ step: 10 })")
        page.evaluate("() => lightningHooks.state.set({ step: 20 })")
        page.wait_for_selector("text=Gradient norm at step 20")
        held.let_go()
        assert page.locator("h2", has_text="at step 20").is_visible()
        held = Held(page, "/rows?run=a&tensor=grad&stat=std")
        page.evaluate("(row) => lightningHooks.state.set({ view: 'row', row })", NAMES[0])
        page.evaluate("(row) => lightningHooks.state.set({ tensor: 'param', row })", NAMES[1])
        page.wait_for_selector(f"h2:has-text('Parameter of {NAMES[1]}')")
        held.let_go()
        assert page.locator("h2", has_text=f"Parameter of {NAMES[1]}").is_visible()


def test_a_run_that_is_resumed_and_one_that_begins(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_hooks.dashboard.runs._REFRESH", 0.0)
    write_run(tmp_path / "a", range(300))
    with serving(tmp_path) as where, opened(browser, f"{where}#run=a&{MAP}&from=100&to=140") as page:
        drawn(page)
        write_run(tmp_path / "a", range(110, 310), change=lambda step, values: values["norm"].fill(7.0))
        write_run(tmp_path / "begun", range(5))
        page.get_by_label("Least value of the colours").fill("abc")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=abc is not a number")
        page.evaluate("() => lightningHooks.poll()")
        page.wait_for_function("() => lightningHooks.range().last === 310")
        page.wait_for_timeout(300)
        page.mouse.move(*place(page, NAMES[0], 120))
        assert "grad norm: 7" in page.locator(".tip").inner_text()
        assert page.locator("text=abc is not a number").is_visible()
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        choose(page, "Compare with", "begun")
        page.wait_for_function("() => lightningHooks.views.map.panels.length === 2")
        choose(page, "Compare with", "")
        assert not page.locator("text=abc is not a number").is_visible()
        page.wait_for_timeout(300)
        asked.clear()
        with page.expect_request(lambda request: "/run?run=a" in request.url):
            page.evaluate("() => lightningHooks.poll()")
        page.wait_for_timeout(200)
        assert not any("/run?run=begun" in each for each in asked)


def test_a_run_that_is_deleted_and_trained_again_under_its_name(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_hooks.dashboard.runs._REFRESH", 0.0)

    def norms(value):
        return lambda step, values: values["norm"].fill(value)

    write_run(tmp_path / "a", range(300), change=norms(1.0))
    with serving(tmp_path) as where, opened(browser, f"{where}#run=a&{MAP}&from=0&to=40") as page:
        drawn(page)
        for value, is_seen in ((7.0, False), (8.0, True)):  # the page asks in between, or does not
            shutil.rmtree(tmp_path / "a")
            if is_seen:
                page.evaluate("() => lightningHooks.poll()")
                page.wait_for_selector("text=There is no event file in this log directory yet.")
            write_run(tmp_path / "a", range(100), change=norms(value))
            page.evaluate("() => lightningHooks.poll()")
            page.wait_for_function("() => lightningHooks.range().last === 100")
            page.wait_for_timeout(300)
            page.mouse.move(1, 1)
            page.mouse.move(*place(page, NAMES[0], 12))
            assert f"grad norm: {value:.0f}" in page.locator(".tip").inner_text()


def test_charts_that_are_gone_listen_to_nothing(browser, url):
    with opened(browser, f"{url}#run=a") as page:
        page.wait_for_selector(".card canvas")
        page.evaluate(
            """() => {
            window.listeners = 0;
            for (const [name, change] of [["addEventListener", 1], ["removeEventListener", -1]]) {
              const original = window[name];
              window[name] = (...args) => {
                window.listeners += change;
                return original.apply(window, args);
              };
            }
          }"""
        )
        for _ in range(3):
            page.evaluate("() => lightningHooks.recolor()")
            page.wait_for_timeout(150)
        page.set_viewport_size({"width": 700, "height": 600})
        page.wait_for_timeout(150)
        assert page.locator(".card canvas").count() == 1
        assert page.evaluate("() => window.listeners") == 0
        page.get_by_role("tab", name="Heat map").click()
        page.wait_for_timeout(150)
        assert page.evaluate("() => window.listeners") < 0
        page.get_by_role("tab", name="Overview").click()
        page.wait_for_selector(".card canvas")


def test_only_so_many_cells_are_kept(browser, url):
    with opened(browser, f"{url}#run=a&{MAP}") as page:
        drawn(page)
        kept = page.evaluate(
            """async (most) => {
            const { cells } = lightningHooks.views.map.panels[0].model;
            const all = Array.from({ length: 5000 }, (_, i) => i);
            cells.source = { tile: async ({ nodes }) => new ArrayBuffer(14 * 128 * 5000) };
            for (let tile = 0; tile < 12; tile++) await cells.load({ level: 0, firstTile: tile, lastTile: tile }, all, 0);
            let kept = 0;
            for (let tile = 0; tile < 12; tile++) kept += cells.tile(0, tile)?.size ?? 0;
            return [kept, cells.tile(0, 11).size];
          }"""
        )
        assert kept[1] == 5000 <= kept[0] <= 20_000


def test_only_the_address_of_tensorboard_is_written_to(browser, url):
    with opened(browser, f"{url}#run=a") as page:
        page.evaluate("(src) => document.body.append(Object.assign(document.createElement('iframe'), { src }))", f"{url}#run=a")
        page.wait_for_selector("iframe")
        frame = page.frames[1]
        frame.wait_for_selector(".card")
        before = page.url
        frame.evaluate("() => lightningHooks.state.set({ view: 'map' })")
        assert "view=map" in frame.evaluate("() => location.hash") and page.url == before


def test_no_run_a_run_that_begins_and_a_run_that_grows(browser, tmp_path):
    with serving(tmp_path) as where, opened(browser, where) as page:
        page.wait_for_selector("text=There is no event file in this log directory yet.")
        write_run(tmp_path / "whole", range(60))
        (file,) = (tmp_path / "whole").glob("*tfevents*")
        content = file.read_bytes()
        os.truncate(file, len(content) // 2)
        page.wait_for_selector("text=steps 0 to 2", timeout=15000)
        page.get_by_role("tab", name="Heat map").click()
        drawn(page)
        file.write_bytes(content)
        page.wait_for_function("() => lightningHooks.range().last === 60", timeout=15000)
        drawn(page)
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "events.out.tfevents.1.host").write_bytes(b"")
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "events.out.tfevents.1.host").write_bytes(b"")
    with serving(tmp_path / "only") as where, opened(browser, where) as page:
        page.wait_for_selector("text=No run here has a table of lightning_hooks.")


def test_a_run_without_tables_shows_what_its_transforms_do(browser, tmp_path):
    markup = "<img src=x onerror=alert(1)>"
    write_scalars(tmp_path / "clipped", range(5), **CLIPPED)
    write_scalars(tmp_path / "other", range(5), loss=1.0)
    write_run(tmp_path / markup, range(5))
    with serving(tmp_path) as where, opened(browser, f"{where}#run=clipped") as page:
        page.wait_for_selector("h2:has-text('What the transforms do')")
        page.wait_for_selector("text=clipped: no table of lightning_hooks, so this is all that is known of it.")
        assert page.get_by_label("Run", exact=True).locator("option").all_inner_texts() == [markup, "clipped"]
        for view in ("Heat map", "Row", "Step"):
            page.get_by_role("tab", name=view).click()
            page.wait_for_selector("text=This run has no table of lightning_hooks, which this view shows. Add a StatsMonitor")
        page.evaluate("() => { location.hash = 'run=other'; }")
        page.wait_for_selector("text=other: no table of lightning_hooks")
        waiting = []
        page.route("**/data/run?*", lambda route: waiting.append(route))
        choose(page, "Run", markup)
        page.set_viewport_size({"width": 900, "height": 800})  # the strip is drawn again while the chosen run is not loaded yet
        page.wait_for_timeout(200)
        assert waiting
        for route in waiting:
            route.continue_()
        page.unroute("**/data/run?*")
        page.wait_for_selector(f"p:has-text('{markup}: steps 0 to 4')")
        page.get_by_role("tab", name="Heat map").click()
        drawn(page)
        choose(page, "Compare with", "clipped")
        page.wait_for_selector("text=clipped has no table of grad norm.")
        assert page.locator(".panel-title").inner_text() == markup and page.locator("img").count() == 0
    write_report(tmp_path / "clipped", tmp_path / "report.html")
    with opened(browser, (tmp_path / "report.html").as_uri()) as page:
        page.wait_for_selector("h2:has-text('What the transforms do')")


def test_numbers_that_are_said_to_be_the_last_or_of_all_are(browser, tmp_path):
    def change(step, values):
        values["norm"][0] = np.inf if step == 2999 else 1 + step % 2

    write_run(tmp_path, range(3000), change=change)
    with SummaryWriter(tmp_path) as writer:
        for step in range(3000):
            writer.add_scalar("transform_norm_before/0_Clip", 2.0, step)
            writer.add_scalar("transform_cosine/0_Clip", 0.25 if step == 2999 else 0.75, step)
    write_run(tmp_path, range(3000), tensor="param", stats=("norm", "count"))
    with serving(tmp_path) as where, opened(browser, where) as page:
        page.wait_for_selector("text=Cosine between before and after, last step: 0.25.")
        page.wait_for_selector("text=No NaN or infinite number in: gradient.")
        page.evaluate("([row]) => lightningHooks.state.set({ view: 'row', tensor: 'grad', stat: 'norm', row })", list(NAMES))
        page.wait_for_selector(".card .value")
        assert page.locator(".card .value").first.inner_text() == "infinite"
        page.evaluate("() => lightningHooks.state.set({ to: 2990 })")
        page.wait_for_selector(".card .value >> text=1 to 2")


def test_rows_that_have_changed_are_asked_for_again(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_hooks.dashboard.runs._REFRESH", 0.0)
    write_run(tmp_path, range(30))
    with serving(tmp_path) as where:
        page = browser.new_page()
        page.goto(f"{where}#view=row&tensor=grad&stat=norm&row={NAMES[0]}")
        page.wait_for_selector(".card canvas")
        write_run(tmp_path, range(30, 40), names=(*NAMES, "new.weight"))
        page.evaluate("([_, row]) => lightningHooks.state.set({ row })", list(NAMES))
        page.wait_for_selector(f"h2:has-text('Gradient of {NAMES[1]}')")
        page.wait_for_selector("[role=img][aria-label*=': 40 points']")
        assert not page.locator(".message").is_visible()
        shutil.rmtree(tmp_path)
        write_run(tmp_path, range(10), tensor="param")  # and no table of grad
        page.evaluate("() => lightningHooks.state.set({ to: 5 })")
        page.wait_for_selector(f"h2:has-text('Parameter of {NAMES[1]}')")
        assert not page.locator(".message").is_visible()
        page.close()


def test_a_resumed_run_is_one(browser, tmp_path):
    write_run(tmp_path, range(30))
    time.sleep(1.1)  # the name of a file holds the second
    write_run(tmp_path, range(20, 50), change=lambda step, values: values["norm"].fill(7.0))
    with serving(tmp_path) as where, opened(browser, f"{where}#view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        page.mouse.move(*place(page, NAMES[0], 25))
        assert "grad norm: 7" in page.locator(".tip").inner_text()
        assert page.evaluate("() => lightningHooks.range().last") == 50


def test_a_server_that_stops_answering_is_said(browser, tmp_path):
    write_run(tmp_path, range(5))
    with serving(tmp_path) as where:
        context = browser.new_context()
        page = context.new_page()
        page.goto(where)
        page.wait_for_selector(".card")
    page.wait_for_selector("text=The server does not answer. Is it still running?", timeout=15000)
    context.close()
