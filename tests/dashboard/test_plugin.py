"""The tab in the real TensorBoard."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard import errors
from werkzeug.test import Client

from lightning_hooks.dashboard.plugin import HooksLoader

from .browser import CHROMIUM, DRAWN
from .runs import NAMES, write_run

ROOT = Path(__file__).parents[2]
PLUGIN = "data/plugin/lightning_hooks"


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError("it did not happen")


def start(logdir, *options):
    """TensorBoard in a process of its own: the process and its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--port", "0", "--reload_interval", "1", *options, "--logdir", str(logdir)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    for line in process.stderr:
        found = re.search(r"http://localhost:\d+/", line)
        if found:
            return process, found[0]
    raise AssertionError("TensorBoard did not start")


def stop(process):
    process.terminate()
    process.wait(30)
    process.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["--load_fast=true", "--load_fast=false"])
def test_the_tab_in_tensorboard(request, tmp_path, loader):
    write_run(tmp_path / "run", range(20), scalars={f"grad_norm/{NAMES[0]}": 1.0})
    process, url = start(tmp_path, loader)
    try:
        listing = wait_until(lambda: json.loads(get(url + "data/plugins_listing")))["lightning_hooks"]
        assert listing["enabled"] and listing["tab_name"] == "Hooks"
        assert listing["loading_mechanism"]["module_path"] == f"/{PLUGIN}/static/page.js"
        assert b"export { render }" in get(f"{url}{PLUGIN}/static/page.js")
        assert json.loads(get(f"{url}{PLUGIN}/data/runs"))["runs"][0]["name"] == "run"
        assert json.loads(get(f"{url}{PLUGIN}/data/run?run=run"))["steps"] == [0, 19]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{url}{PLUGIN}/static/..%2fsite.py")
        if CHROMIUM is not None:
            grows = tmp_path / "run" if loader == "--load_fast=true" else None
            look_at_the_tab(request.getfixturevalue("browser"), url, grows)
    finally:
        stop(process)


def tab_of(page):
    """The frame of the tab."""
    frame = page.wait_for_selector("iframe", timeout=60_000).content_frame()
    frame.wait_for_url("**/plugin_entry.html*")
    return frame


def look_at_the_tab(browser, url, grows):
    """The Hooks tab in the browser: its heat map, a run that grows, the address, the way to the ordinary charts."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{url}#lightning_hooks")
    frame = tab_of(page)
    frame.get_by_role("tab", name="Heat map").click()
    frame.wait_for_function(DRAWN)
    assert "view%3Dmap" in page.url and page.url.startswith(f"{url}#lightning_hooks")
    shared = page.url
    if grows is not None:
        assert frame.evaluate("() => lightningHooks.range().last") == 20
        write_run(grows, range(20, 30))
        frame.wait_for_function("() => lightningHooks.range().last === 30")
        frame.wait_for_function(DRAWN)
    frame.get_by_label("Statistic", exact=True).select_option("std")
    assert "stat%3Dstd" in page.url
    # The address is enough to come back to the view.
    page.goto("about:blank")
    page.goto(shared)
    frame = tab_of(page)
    frame.wait_for_function(DRAWN)
    assert frame.evaluate("() => [lightningHooks.state.view, lightningHooks.state.stat]") == ["map", "norm"]
    page.evaluate("() => document.body.classList.add('dark-mode')")
    frame.wait_for_function("() => getComputedStyle(document.body).backgroundColor === 'rgb(22, 24, 29)'")
    frame.evaluate("([row]) => lightningHooks.state.set({ view: 'row', row })", [NAMES[0]])
    frame.get_by_role("button", name="in Time Series").click()
    page.wait_for_selector("text=Tags matching filter")
    assert "#timeseries" in page.url
    assert not errors
    assert not [each for each in requests if not each.startswith((url, "data:", "blob:", "about:"))]
    context.close()


@pytest.mark.slow
def test_a_log_directory_that_is_not_local_is_read_through_tensorboard(tmp_path):
    def change(step, values):
        values["norm"][0] = step

    write_run(tmp_path / "run", range(20), change=change)
    # A list of directories is no path, so the data provider is asked.
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--port", "0", "--load_fast=false", "--logdir_spec", f"x:{tmp_path}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        url = next(found[0] for line in process.stderr if (found := re.search(r"http://localhost:\d+/", line)))
        base = f"{url}{PLUGIN}/data/"
        wait_until(lambda: json.loads(get(base + "runs"))["runs"])
        run = wait_until(lambda: [each["name"] for each in json.loads(get(base + "runs"))["runs"] if each["shown"]])[0]
        rows = json.loads(get(f"{base}rows?run={run}&tensor=grad&stat=norm"))
        node = next(i for i, each in enumerate(rows["nodes"]) if each["row"] == 0)
        cells = get(f"{base}tile?run={run}&tensor=grad&stat=norm&key={rows['key']}&unit=1&level=0&first=0&last=20&nodes={node}")
        import numpy as np

        assert np.frombuffer(cells, "<f4", 20).tolist() == list(range(20))
        assert "run/grad_norm" in json.loads(get(f"{base}run?run={run}"))["scalars"]
        assert json.loads(get(f"{base}scalar?run={run}&tag=run/grad_norm"))["steps"] == list(range(20))
    finally:
        stop(process)


def test_loading_the_entry_point_imports_little():
    code = "import sys, tensorboard.plugins.base_plugin; before = {*sys.modules}; import lightning_hooks.dashboard.plugin; "
    code += "new = {name.partition('.')[0] for name in {*sys.modules} - before}; print(new - {*sys.stdlib_module_names})"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.strip() == "{'lightning_hooks'}"


def test_what_fails_is_shown_in_the_tab(monkeypatch):
    monkeypatch.setattr("lightning_hooks.dashboard.plugin._make", lambda context: 1 / 0)
    plugin = HooksLoader().load(SimpleNamespace(logdir="."))
    assert plugin.is_active() is True  # so that somebody sees it
    answers = []
    body = plugin.get_plugin_apps()["/static/*"](
        {"PATH_INFO": "/x/static/index.js"}, lambda status, headers: answers.append(status)
    )
    assert answers == ["200 OK"]
    assert b"The Hooks tab could not be loaded. ZeroDivisionError: division by zero" in b"".join(body)
    body = plugin.get_plugin_apps()["/data/*"]({"PATH_INFO": "/x/data/runs"}, lambda status, headers: answers.append(status))
    assert answers[1].startswith("500") and json.loads(b"".join(body)) == {"error": "ZeroDivisionError: division by zero"}


@pytest.mark.filterwarnings("ignore:html5lib:DeprecationWarning")  # what TensorBoard brings along
@pytest.mark.parametrize(
    ("error", "status", "challenge"),
    [
        (errors.PermissionDeniedError("who asks?"), "403 Forbidden", None),
        (errors.UnauthenticatedError("who asks?", challenge="Digest"), "401 Unauthorized", "Digest"),
        (errors.NotFoundError("who asks?"), "404 Not Found", None),
    ],
)
def test_what_a_data_provider_refuses_is_answered_as_it_says(error, status, challenge):
    def list_runs(**asked):
        raise error

    plugin = HooksLoader().load(SimpleNamespace(logdir="", data_provider=SimpleNamespace(list_runs=list_runs)))
    assert plugin.is_active() is False
    answer = Client(plugin.get_plugin_apps()["/data/*"]).get(f"/{PLUGIN}/data/runs")
    assert answer.status.title() == status and answer.json == {"error": str(error)}
    assert answer.headers.get("WWW-Authenticate") == challenge


@pytest.mark.filterwarnings("ignore:html5lib:DeprecationWarning")  # what TensorBoard brings along
@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ({"host": None, "bind_all": False}, 421),
        ({"host": "localhost", "bind_all": False}, 421),
        ({"host": "127.0.0.2", "bind_all": False}, 421),
        ({"host": None, "bind_all": True}, 200),
        ({"host": "0.0.0.0", "bind_all": False}, 200),
        ({}, 200),  # of another version: where it listens is not known
    ],
)
def test_the_tab_of_a_local_tensorboard_gives_data_under_names_of_this_machine_only(tmp_path, flags, status):
    write_run(tmp_path, range(3))
    plugin = HooksLoader().load(SimpleNamespace(logdir=str(tmp_path), flags=SimpleNamespace(**flags)))
    client = Client(plugin.get_plugin_apps()["/data/*"])
    answer = client.get(f"/{PLUGIN}/data/runs", headers={"Host": "evil.example"})
    assert answer.status_code == status
    assert status == 200 or "set LIGHTNING_HOOKS_HOSTS to the name" in answer.json["error"]
    for host in ("localhost:6006", "127.0.0.1:6006", "[::1]:6006"):
        assert client.get(f"/{PLUGIN}/data/runs", headers={"Host": host}).status_code == 200
    # The page itself holds no data, and shows the message.
    assert client.get(f"/{PLUGIN}/static/index.js", headers={"Host": "evil.example"}).status_code == 200


def test_flags_for_a_log_directory_elsewhere():
    flags = SimpleNamespace(logdir="gs://bucket/logs", samples_per_plugin={})
    HooksLoader().fix_flags(flags)
    assert flags.samples_per_plugin == {"lightning_hooks": 1000}
    HooksLoader().fix_flags(SimpleNamespace())  # of a TensorBoard that has other flags


def test_a_log_directory_that_does_not_exist_yet_is_read_as_soon_as_it_does(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_hooks.dashboard.runs._REFRESH", 0.0)
    flags = SimpleNamespace(logdir=str(tmp_path / "logs"), samples_per_plugin={})
    HooksLoader().fix_flags(flags)
    assert flags.samples_per_plugin == {}
    plugin = HooksLoader().load(SimpleNamespace(logdir=str(tmp_path / "logs"), data_provider=None))
    assert plugin.is_active() is False
    assert runs_of(plugin) == []
    write_run(tmp_path / "logs" / "run", range(3))
    assert plugin.is_active() is True
    assert runs_of(plugin) == ["run"]


def runs_of(plugin):
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": f"/{PLUGIN}/data/runs",
        "HTTP_HOST": "localhost",
        "wsgi.url_scheme": "http",
    }
    body = plugin.get_plugin_apps()["/data/*"](environ, lambda *answer: None)
    return [each["name"] for each in json.loads(b"".join(body))["runs"]]
