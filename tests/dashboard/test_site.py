"""What is answered, and above all what is not."""

import json
import os
import re
import threading
import weakref

import numpy as np
import pytest
from werkzeug.test import Client

from lightning_hooks import RuleError
from lightning_hooks.cli import main
from lightning_hooks.dashboard import view
from lightning_hooks.dashboard.api import Api
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.runs import LocalRuns
from lightning_hooks.dashboard.site import FILES, Site
from lightning_hooks.health.finding import Event
from lightning_hooks.health.journal import Journal
from tests.cli import written_fits

from .runs import NAMES, STATS, write_run


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_run(folder / "a" / "version_0", range(10), histograms=True)

    def change(step, values):
        if step >= 3:
            values["norm"][1] = np.nan
            values["nonfinite"][1] = 2
            values["norm"][0] *= 1000

    write_run(folder / "b", range(10), change=change)
    (folder / "b" / "findings.jsonl").write_text('{"rule": "NonFinite", "name": "net.0.bias", "step": 3}\n{"half')
    (folder / "secret.txt").write_text("classified")
    return folder


@pytest.fixture(scope="module")
def client(logdir):
    return Client(Site(Api(LocalRuns(logdir)), ["localhost"]), use_cookies=False)


def ask(client, route, **args):
    return client.get(f"/data/{route}", query_string={key: str(value) for key, value in args.items()})


def table(client, run="b", tensor="grad", stat="norm"):
    rows = ask(client, "rows", run=run, tensor=tensor, stat=stat).json
    return rows, {"run": run, "tensor": tensor, "stat": stat, "key": rows["key"], "unit": 1, "level": 0, "first": 0, "last": 10}


def test_runs_and_what_they_have(client):
    runs = ask(client, "runs").json["runs"]
    assert [(run["name"], run["shown"]) for run in runs] == [("a/version_0", True), ("b", True)]
    run = ask(client, "run", run="b").json
    assert run["steps"] == [0, 9] and run["history"] > 0
    assert run["tensors"] == [{"tensor": "grad", "stats": ["mean", "std", "norm", "zero_fraction", "nonfinite", "count"]}]
    curve = {"tensor": "grad", "stat": "norm", "row": "net.0.bias"}
    assert run["findings"] == [{"rule": "NonFinite", "name": "net.0.bias", "step": 3, "curve": curve, "stat": "norm"}]
    assert run["strip"] == ["run/grad_norm"] and run["checks"] is None
    other = ask(client, "run", run="a/version_0").json
    assert other["findings"] is None and other["doctor"].startswith("lightning-hooks doctor /")


def test_rows_and_tiles(client):
    rows, args = table(client)
    names = [node["name"] for node in rows["nodes"]]
    assert [name for name in names if name in NAMES] == list(NAMES)
    assert rows["steps"] == [[0, 9, 1]]
    answer = ask(client, "tile", **args, nodes=f"0-{len(names) - 1}")
    assert answer.status_code == 200 and answer.headers["Content-Type"] == "application/octet-stream"
    nan = np.frombuffer(answer.data, "<u2", len(names) * 10, 8 * len(names) * 10).reshape(len(names), 10)
    assert nan[names.index("net.0.bias")].tolist() == [0] * 3 + [1] * 7


def test_a_tile_of_the_difference_of_two_runs(client):
    rows, args = table(client)
    nodes = f"0-{len(rows['nodes']) - 1}"
    other = {"other": "a/version_0", "other_key": table(client, run="a/version_0")[0]["key"]}
    answer = ask(client, "tile", **args, **other, nodes=nodes)
    least = np.frombuffer(answer.data, "<f4", len(rows["nodes"]) * 10).reshape(-1, 10)
    names = [node["name"] for node in rows["nodes"]]
    assert least[names.index("net.2.weight")].tolist() == [0.0] * 10 and least[names.index("net.0.weight"), 3] > 100
    refused = ask(client, "tile", **args, **{**other, "other_key": "old"}, nodes=nodes)
    assert refused.status_code == 400 and refused.json["error"].startswith("other_key: the rows of this table have changed")
    assert ask(client, "tile", **args, **{**other, "other": "nope"}, nodes=nodes).status_code == 404


def test_whether_folded_parts_are_merged_exactly(tmp_path):
    write_run(tmp_path / "run", range(2))
    write_run(tmp_path / "old", range(2), old=True)
    client = Client(Site(Api(LocalRuns(tmp_path))))
    exact = {stat: table(client, "run", "grad", stat)[0]["exact"] for stat in STATS}
    assert exact == dict.fromkeys(STATS, True)
    assert {table(client, "old", "grad", stat)[0]["exact"] for stat in STATS} == {False}


def test_scalars_are_reduced_and_hide_no_extreme(client):
    found = ask(client, "scalar", run="b", tag="run/grad_norm", points=3).json
    assert found["steps"] == [0, 3, 6] and found["ends"] == [2, 5, 9] and len(found["least"]) == 3
    assert found["nan"] == [1, 2]
    assert found["greatest"][1] == {"float": "nan"}
    values = ask(client, "scalar", run="a/version_0", tag="run/grad_norm", points=10).json
    joined = ask(client, "scalar", run="a/version_0", tag="run/grad_norm", points=2).json
    assert joined["last"] == values["greatest"][-1] and joined["greatest"][-1] == max(values["greatest"][5:])


def test_histograms_of_many_rows_are_one_request(client):
    tags = ask(client, "run", run="a/version_0").json["histograms"]
    found = ask(client, "histograms", run="a/version_0", tags="0,2-3", steps=4).json
    assert [each["tag"] for each in found] == [tags[0], *tags[2:4]]
    assert found[0]["steps"] == [0, 3, 6, 9] and found[0]["totals"] == [4, 4, 4, 4]


def test_the_overview_says_where_to_look(client):
    found = ask(client, "overview", run="b").json
    assert found["nonfinite"] == [{"tensor": "grad", "name": "net.0.bias", "first": 3, "steps": 7, "most": 2.0}]
    assert {*found} == {"run", "last", "transforms", "nonfinite", "modes", "head"}
    assert found["run"] == ["run/grad_norm"]


def test_the_page_and_its_files(client):
    page = client.get("/")
    assert page.status_code == 200 and b"main.js" in page.data
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    for name in FILES:
        answer = client.get(f"/static/{name}")
        assert answer.status_code == 200 and answer.headers["X-Content-Type-Options"] == "nosniff"
    assert client.get("/static/index.js").headers["Content-Type"] == "text/javascript; charset=utf-8"


def test_the_modules_of_the_page_are_served_as_one(client):
    page = client.get("/").get_data(as_text=True)
    assert 'href="static/page.js"' in page
    served = client.get("/static/page.js")
    assert served.status_code == 200 and served.headers["Content-Type"] == "text/javascript; charset=utf-8"
    text = served.get_data(as_text=True)
    assert text.endswith("\nexport { render };\n") and "class InlineSource" not in text
    assert not re.search("^import .* from ", text, re.MULTILINE)


@pytest.mark.parametrize(("folder", "read"), [("b", ["open ."]), ("", ["health"])])
def test_the_first_screen_is_read_while_the_browser_loads_the_page(logdir, monkeypatch, folder, read):
    begun = []
    monkeypatch.setattr(LocalRuns, "open", lambda self, name: begun.append(f"open {name}"))
    monkeypatch.setattr(LocalRuns, "health", lambda self: begun.append("health"))
    client = Client(Site(Api(LocalRuns(logdir / folder))))
    assert client.get("/").status_code == 200
    client.get("/data/runs")  # is answered by the same thread, afterwards
    assert begun == read


@pytest.mark.parametrize(
    "path",
    [
        "/static/../site.py",
        "/static/%2e%2e/site.py",
        "/static//etc/passwd",
        "/static/..%5csite.py",
        "/static/",
        "/static/vendor/../../site.py",
        "/secret.txt",
        "/data",
        "/data/",
        "/data/../secret.txt",
        "/data/nothing",
    ],
)
def test_nothing_outside_the_page_is_served(client, path):
    answer = client.get(path)
    assert answer.status_code == 404 and b"classified" not in answer.data


@pytest.mark.parametrize("run", ["nope", "../b", "/etc", "b/..", "a", ".", "", "b\0", "a/version_0/.."])
def test_only_runs_that_were_found_are_opened(client, run):
    answer = ask(client, "run", run=run)
    assert answer.status_code == 404
    assert answer.json["error"] == f"there is no run {run!r}"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"first": -1}, "first: '-1' is not a whole number"),
        ({"first": 5, "last": 5}, "is not from 1 to"),
        ({"last": 10**9}, "is not from 1 to"),
        ({"last": "9" * 400}, "last: '9999"),
        ({"level": 41}, "level: '41' is not a whole number from 0 to 40"),
        ({"unit": 0}, "unit: '0'"),
        ({"unit": 2**53, "level": 40, "first": 2**50, "last": 2**50 + 1}, "level: the steps of these cells"),
        ({"nodes": "3-1"}, "nodes: '3-1' is not a range"),
        ({"nodes": "99"}, "nodes: '99' is not a whole number from 0 to 5"),
        ({"nodes": "0," * 20000 + "0"}, "nodes: '0' is not a range after the one before"),
        ({"nodes": "x"}, "nodes: 'x'"),
        ({"nodes": "٣"}, "nodes: '٣'"),
        ({"key": "old"}, "key: the rows of this table have changed"),
    ],
)
def test_invalid_ranges_are_refused(client, wrong, message):
    _, args = table(client)
    answer = ask(client, "tile", **{**args, "nodes": "0", **wrong})
    assert answer.status_code == 400
    assert message in answer.json["error"]


@pytest.mark.parametrize(
    ("route", "args", "status", "message"),
    [
        ("tile", {"run": "b", "tensor": "grad", "stat": "nope"}, 404, "there is no table of 'grad' 'nope' in run 'b'"),
        ("rows", {"run": "b", "tensor": "nope", "stat": "norm"}, 404, "there is no table"),
        ("rows", {"tensor": "grad", "stat": "norm"}, 400, "run: missing"),
        ("scalar", {"run": "b", "tag": "nope"}, 404, "there is no scalar 'nope' in run 'b'"),
        ("scalar", {"run": "b", "tag": "run/grad_norm", "points": 10**6}, 400, "points:"),
        ("histograms", {"run": "b", "tags": "0"}, 404, "there are no histograms in run 'b'"),
        ("histograms", {"run": "a/version_0", "tags": "1,0"}, 400, "tags: '0' is not a range after the one before"),
        ("histograms", {"run": "a/version_0", "tags": "0", "steps": "1001"}, 400, "steps: '1001' is not a whole number from 1"),
        ("nothing", {}, 404, "there is no 'nothing'; there are runs, health, glimpse, run, rows"),
    ],
)
def test_what_is_not_there_is_said(client, route, args, status, message):
    answer = ask(client, route, **args)
    assert answer.status_code == status and message in answer.json["error"]


@pytest.mark.parametrize("method", ["post", "put", "delete", "options", "patch"])
def test_only_reading_is_allowed(client, method):
    assert getattr(client, method)("/data/runs").status_code == 405


def test_other_origins_and_other_names_are_refused(client, logdir):
    assert client.get("/data/runs", headers={"Host": "evil.example"}).status_code == 421
    assert client.get("/data/runs", headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.get("/data/runs", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.get("/data/runs", headers={"Origin": "null"}).status_code == 403
    assert client.get("/data/runs", headers={"Origin": "http://[bad"}).status_code == 403
    assert client.get("/data/runs", headers={"Host": "[bad"}).status_code == 421
    for host in ("localhost:8000", "localhost:80", "LOCALHOST"):  # a port that is forwarded has another number
        assert client.get("/data/runs", headers={"Host": host}).status_code == 200
    assert client.get("/data/runs", headers={"Host": "localhost.evil.example"}).status_code == 421
    anywhere = Client(Site(Api(LocalRuns(logdir))), use_cookies=False)
    for host in ("[bad", "a b", ""):
        for origin in ("http://evil.example", "null", "http://"):
            assert anywhere.get("/data/runs", headers={"Host": host, "Origin": origin}).status_code == 403
    assert client.get("/data/runs", headers={"Origin": "http://localhost"}).status_code == 200


def test_a_link_elsewhere_leads_to_the_page_and_not_to_data(client):
    def status(path, to):
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": to}
        return client.get(path, headers=headers).status_code

    assert status("/", "document") == 200
    assert status("/", "iframe") == status("/data/runs", "document") == status("/static/main.js", "document") == 403


def test_names_are_data_and_never_markup(tmp_path):
    names = ("<img src=x onerror=alert(1)>.w", 'a"b/c\\d', "שלום.weight", "𝔘.nicode", "</script>")
    write_run(tmp_path, range(3), names=names)
    client = Client(Site(Api(LocalRuns(tmp_path))))
    rows, _ = table(client, run=".")
    assert {node["name"] for node in rows["nodes"]} >= {*names}


def test_a_server_for_this_machine_only(logdir):
    server = view.make(logdir)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        assert view.url(server) == f"http://127.0.0.1:{server.server_port}/"
        assert server.socket.getsockname()[0] == "127.0.0.1"
        import urllib.request

        with urllib.request.urlopen(view.url(server) + "data/runs") as answer:
            assert len(json.load(answer)["runs"]) == 2
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(urllib.request.Request(view.url(server), headers={"Host": "evil.example"}))
        with pytest.raises(RuleError, match=rf"port: {server.server_port} of 127.0.0.1 cannot be used .*in use.*--port"):
            view.make(logdir, port=server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    with pytest.raises(RuleError, match="there is no log directory at '.*nowhere'"):
        view.make(logdir / "nowhere")
    (logdir / "notes.txt").write_text("no run")
    with pytest.raises(RuleError, match=r"notes.txt' is neither a log directory nor an event file, whose name is like"):
        view.make(logdir / "notes.txt")
    for host in ("no.such.host.invalid", "192.0.2.1"):
        with pytest.raises(RuleError, match=rf"^host: '{host}' is no address of this machine \(.+\); 0.0.0.0 stands for all"):
            view.make(logdir, host)


def get(server, path, host):
    """The status of a request to a server that is not running."""
    return Client(server.app, use_cookies=False).get(path, headers={"Host": host}).status_code


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "127.1", "localhost", "::1", "::ffff:127.0.0.1"])
def test_at_a_loopback_address_only_names_of_this_machine_get_data(logdir, address, capsys, monkeypatch):
    try:
        server = view.make(logdir, address)
    except RuleError as error:
        pytest.skip(f"this machine does not have it: {error}")
    try:
        for host in (
            "localhost",
            "LocalHost.:80",
            "127.0.0.1:1",
            "127.0.0.9",
            "[::1]:6007",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
        ):
            assert get(server, "/data/runs", host) == get(server, "/", host) == 200, host
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0", "192.0.2.1", "[bad", ""):
            assert get(server, "/data/runs", host) == get(server, "/", host) == 421, host
    finally:
        server.server_close()
    monkeypatch.setattr("werkzeug.serving.BaseWSGIServer.serve_forever", lambda server: None)
    view.view(logdir, address, 0)
    assert "everybody" not in capsys.readouterr().out


def test_a_name_under_which_a_proxy_asks_is_allowed_by_a_variable(logdir, monkeypatch):
    monkeypatch.setenv("LIGHTNING_HOOKS_HOSTS", " Hub.example, other.example")
    server = view.make(logdir)
    server.server_close()
    assert get(server, "/data/runs", "hub.example:443") == get(server, "/data/runs", "other.example") == 200
    assert get(server, "/data/runs", "evil.example") == 421


def test_a_server_for_others_too_is_asked_under_any_name(logdir, capsys, monkeypatch):
    server = view.make(logdir, "0.0.0.0")
    server.server_close()
    assert get(server, "/data/runs", "gpu-box.lan:6007") == get(server, "/data/runs", "127.0.0.1") == 200
    monkeypatch.setattr("werkzeug.serving.BaseWSGIServer.serve_forever", lambda server: None)
    view.view(logdir, "0.0.0.0", 0)
    assert "lightning-hooks: everybody who reaches 0.0.0.0 can read these runs" in capsys.readouterr().out


def test_the_browser_is_given_the_address(logdir, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("werkzeug.serving.BaseWSGIServer.serve_forever", lambda server: None)
    assert main(["view", str(logdir), "--port", "0", "--open"]) == 0
    assert len(opened) == 1 and f"lightning-hooks: {opened[0]} shows the runs in" in capsys.readouterr().out
    assert main(["view", str(logdir), "--port", "0"]) == 0 and len(opened) == 1


def test_a_run_that_begins_and_grows_is_followed(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_hooks.dashboard.runs._REFRESH", 0.0)
    client = Client(Site(Api(LocalRuns(tmp_path))))
    assert ask(client, "runs").json == {"runs": []}
    whole = tmp_path / "whole"
    write_run(whole, range(20))
    (file,) = whole.glob("*tfevents*")
    content = file.read_bytes()
    os.truncate(file, len(content) // 2)
    first = ask(client, "run", run="whole").json
    assert 2 < first["steps"][1] < 18
    file.write_bytes(content)
    second = ask(client, "run", run="whole").json
    assert second["steps"] == [0, 19] and second["version"] > first["version"]
    assert ask(client, "run", run="whole").json == second
    # Written after the step that it is about.
    (whole / "findings.jsonl").write_text('{"step": 3, "name": null}\n')
    third = ask(client, "run", run="whole").json
    assert third["findings"] == [{"step": 3, "curve": {"tag": "run/grad_norm"}}] and third["version"] > second["version"]


def test_of_several_fits_in_a_folder_the_newest_is_shown_and_where_the_one_before_is(tmp_path):
    write_run(tmp_path, range(3))
    journals, found = [Journal(tmp_path) for _ in range(2)], []
    client = Client(Site(Api(LocalRuns(tmp_path))))
    with pytest.warns(UserWarning, match="another fit writes into"):
        for number, journal in enumerate(journals, 1):
            journal.write([Event("begin", 0, time=float(number)), Event("new", 2, written_fits.finding(number))])
            run = ask(client, "run", run=".").json
            found.append(([each["number"] for each in run["findings"]], run["checks"], run["earlier_fit"]))
    command = f"lightning-hooks doctor {tmp_path} --fit 1"
    assert found == [([1], None, None), ([2], None, command)]
    for journal in journals[::-1]:
        journal.write_summary(written_fits.summary())
        journal.write([Event("end", 9)])
        journal.close()
    run = ask(client, "run", run=".").json
    assert run["checks"]["steps"] == 100 and [each["number"] for each in run["findings"]] == [2]
    (tmp_path / "findings-2.jsonl").unlink()
    assert [each["number"] for each in ask(client, "run", run=".").json["findings"]] == [1]


def test_the_tree_of_a_table_is_kept_once_and_no_longer_than_its_run(tmp_path):
    write_run(tmp_path, range(3))
    (file,) = tmp_path.glob("*tfevents*")
    content = file.read_bytes()
    os.truncate(file, len(content) // 2)
    run = LocalRun(tmp_path)
    api = Api(LocalRuns(tmp_path))
    key, nodes = api.nodes(run, "grad", "norm")
    assert api.nodes(run, "grad", "norm") == (key, nodes)
    first = weakref.ref(nodes[0])
    file.write_bytes(content)
    run.refresh()
    nodes = api.nodes(run, "grad", "norm")[1]
    assert first() is None
    second, gone = weakref.ref(nodes[0]), weakref.ref(run)
    del run, nodes
    assert gone() is None and second() is None


def test_an_empty_event_file_is_a_run_without_tables(tmp_path):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"")
    client = Client(Site(Api(LocalRuns(tmp_path))))
    assert ask(client, "runs").json["runs"][0]["shown"] is False
    run = ask(client, "run", run=".").json
    assert run["steps"] is None and run["tensors"] == []
    assert ask(client, "overview", run=".").json["nonfinite"] == []
