"""The page while things happen: what it asks for and when, answers that come late, runs that change."""

import pytest

from lightning_hooks.dashboard.report import write_report

from .browser import drawn, needs_browser, opened, serving
from .runs import write_run

pytestmark = [needs_browser, pytest.mark.slow]
MAP = "view=map&tensor=grad&stat=norm&folded=%2B"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_run(folder / "a", range(40))
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
