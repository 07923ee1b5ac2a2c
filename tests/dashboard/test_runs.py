"""Which runs there are, and how they are followed while they grow."""

import contextvars
import json
import os

import numpy as np
import pytest
from tensorboard import context, errors
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks.dashboard import runs
from lightning_hooks.dashboard.api import Api
from lightning_hooks.health.finding import Finding
from lightning_hooks.health.rule import Severity, Symptom
from lightning_hooks.health.summary import summary_of
from lightning_hooks.records.entry import LogEntry
from lightning_hooks.records.histograms import RowHistograms
from lightning_hooks.stats.stored_counts import BUCKETS
from lightning_hooks.tensorboard import StepEventWriter

from ..tensorboard import records
from .runs import CLIPPED, refuse_to_open, write_run, write_scalars


def ask(api, route, **args):
    return json.loads(api(route, args).body)


@pytest.fixture
def multiplexer_and_provider(tmp_path):
    """TensorBoard's own data provider, which answers only those who have said who they are, and what reads the files for it."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    class GuardedProvider(MultiplexerDataProvider):
        def list_runs(self, ctx=None, **asked):
            if ctx.client_feature_flags.get("who") is None:
                raise errors.PermissionDeniedError("who asks?")
            return super().list_runs(ctx, **asked)

    multiplexer = EventMultiplexer()
    return multiplexer, GuardedProvider(multiplexer, str(tmp_path))


def as_somebody(who, function, *args, **kwargs):
    """Call it as a request of somebody does."""
    environ = {}
    context.set_in_environ(environ, context.RequestContext(client_feature_flags={"who": who}))
    here = contextvars.copy_context()
    here.run(runs.ENVIRON.set, environ)
    return here.run(function, *args, **kwargs)


@pytest.mark.filterwarnings("ignore:html5lib:DeprecationWarning")  # what TensorBoard brings along
def test_a_run_of_a_data_provider_is_followed_and_every_request_is_checked(tmp_path, monkeypatch, multiplexer_and_provider):
    multiplexer, provider = multiplexer_and_provider
    monkeypatch.setattr(runs, "_PROVIDER_REFRESH", 0.0)
    write_scalars(tmp_path / "clipped", range(2), **CLIPPED)
    write_scalars(tmp_path / "other", range(2), loss=1.0)
    write_run(tmp_path / "run", range(5))
    (file,) = (tmp_path / "run").glob("*tfevents*")
    file.rename(file.with_name("events.out.tfevents.1.host"))  # so that it comes first
    multiplexer.AddRunsFromDirectory(str(tmp_path)).Reload()
    api = Api(runs.ProviderRuns(provider))
    first = as_somebody("me", ask, api, "run", run="run")
    assert first["steps"] == [0, 4] and as_somebody("me", ask, api, "run", run="run") == first
    with pytest.raises(errors.PermissionDeniedError, match="who asks"):
        as_somebody(None, ask, api, "run", run="run")
    listed = as_somebody("me", ask, api, "runs")["runs"]
    assert {each["name"]: each["shown"] for each in listed} == {"clipped": True, "other": False, "run": True}
    # The list of runs has no files to look at here: it shows names and dates.
    assert as_somebody("me", ask, api, "health") == {"clipped": None, "other": None, "run": None}
    assert as_somebody("me", ask, api, "glimpse", run="run") == {}
    assert "there is no run" in as_somebody("me", ask, api, "glimpse", run="absent")["error"]
    write_run(tmp_path / "run", range(5, 8))
    multiplexer.Reload()
    second = as_somebody("me", ask, api, "run", run="run")
    assert second["steps"] == [0, 7] and second["version"] > first["version"]
    assert as_somebody("me", ask, api, "run", run="nothing") == {"error": "there is no run 'nothing'"}


@pytest.mark.filterwarnings("ignore:html5lib:DeprecationWarning")  # what TensorBoard brings along
def test_findings_are_read_from_the_event_file_where_no_file_is_beside_it(tmp_path, monkeypatch, multiplexer_and_provider):
    multiplexer, provider = multiplexer_and_provider
    monkeypatch.setattr(runs, "_PROVIDER_REFRESH", 0.0)
    symptom = Symptom("net.0.bias", tensor="grad", step=2, measured=1.0, threshold=0.0, text="a number is not finite")
    found = Finding(
        "NonFinite",
        rows=("net.0.bias",),
        tensor="grad",
        first_step=2,
        last_step=2,
        severity=Severity.CRITICAL,
        evidence=(symptom,),
        message="Not finite.",
        number=1,
    )
    write_run(tmp_path / "run", range(5))
    about = {"could_not": {}, "failed": {}, "accepted": [], "findings": [found], "causes": []}
    with SummaryWriter(tmp_path / "run") as summary_writer:
        writer = StepEventWriter(summary_writer)
        for step, ended in ((2, False), (4, True)):
            writer.write_findings(
                {**summary_of(step, step + 1, ran=["NonFinite"], **about), "has_ended": ended}, step, "health/"
            )
    multiplexer.AddRunsFromDirectory(str(tmp_path)).Reload()
    for source in (runs.LocalRuns(tmp_path), runs.ProviderRuns(provider)):
        said = as_somebody("me", ask, Api(source), "run", run="run")
        assert [(each["rule"], each["name"], each["tensor"]) for each in said["findings"]] == [
            ("NonFinite", "net.0.bias", "grad")
        ]
        assert said["findings"][0]["curve"] == {"tensor": "grad", "stat": "nonfinite", "row": "net.0.bias"}
        assert (said["checks"]["ran"], said["checks"]["steps"]) == (["NonFinite"], 5)
        assert (said["doctor"] is None) == isinstance(source, runs.ProviderRuns)


@pytest.mark.filterwarnings("ignore:html5lib:DeprecationWarning")  # what TensorBoard brings along
def test_rows_that_several_monitors_write_at_one_step_are_read_together(tmp_path, multiplexer_and_provider):
    multiplexer, provider = multiplexer_and_provider
    lists = records.NAMES, ("first", "second", "last")
    with SummaryWriter(tmp_path / "run") as summary_writer:
        writers = [StepEventWriter(summary_writer) for _ in lists]
        for step in range(5):
            for writer, names in zip(writers, lists, strict=True):
                writer.write(records.record(step, names=names))
    multiplexer.AddRunsFromDirectory(str(tmp_path)).Reload()

    def read(found):
        source = found.open("run")
        return source.rows("grad", "norm"), source.steps("grad", "norm"), source.read("grad", "norm", 0, 5)

    for found in (runs.LocalRuns(tmp_path), runs.ProviderRuns(provider)):
        rows, steps, values = as_somebody("me", read, found)
        assert rows == lists[0] + lists[1] and steps.tolist() == [0, 1, 2, 3, 4]
        expected = [[*(row + step / 8 for row in range(2)), np.nan] * 2 for step in range(5)]
        np.testing.assert_array_equal(values, expected)


@pytest.mark.filterwarnings("ignore:html5lib:DeprecationWarning")  # what TensorBoard brings along
def test_the_page_has_the_histogram_of_every_row_wherever_the_files_are(tmp_path, multiplexer_and_provider):
    multiplexer, provider = multiplexer_and_provider
    names = tuple(f"blocks.{i}" for i in range(24))
    with SummaryWriter(tmp_path / "run") as summary_writer:
        writer = StepEventWriter(summary_writer)
        for step in (0, 50):
            counts = np.zeros((24, BUCKETS))
            counts[range(24), 300] = np.arange(24) + step + 1
            drawn = {"histogram_tags": ["watch/val/output_histogram/blocks", "mine"], "histogram_counts": counts[:2]}
            rows = [RowHistograms("output", names, np.arange(24), counts)]
            writer.write(LogEntry(step, prefix="watch/val/", row_histograms=rows, **drawn))
    multiplexer.AddRunsFromDirectory(str(tmp_path)).Reload()
    for source in (runs.LocalRuns(tmp_path), runs.ProviderRuns(provider)):
        said = as_somebody("me", ask, Api(source), "run", run="run")
        assert said["histograms"] == [*(f"watch/val/output_histogram/{name}" for name in names), "mine"]
        assert said["tensors"] == []  # Histograms alone are no table.
        packed = as_somebody("me", ask, Api(source), "histograms", run="run", tags="0-24")
        assert [each["totals"] for each in packed[:24]] == [[i + 1, i + 51] for i in range(24)]
        assert {(each["low"], each["bins"]) for each in packed[:24]} == {(46, 1)} and packed[24]["steps"] == [0, 50]


@pytest.mark.filterwarnings("ignore:.*tfevents")
def test_a_run_with_an_unreadable_file_says_so_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_REFRESH", 0.0)
    for name in ("good", "bad", "fine"):
        write_run(tmp_path / name, range(3))
    (bad,) = (tmp_path / "bad").glob("*tfevents*")
    api = Api(runs.LocalRuns(tmp_path))
    assert ask(api, "run", run="bad")["problems"] == [] and ask(api, "run", run="good")["steps"] == [0, 2]
    said = [f"{bad.name}: cannot be read (Permission denied)"]
    table = {"run": "bad", "tensor": "grad", "stat": "norm"}
    key = ask(api, "rows", **table)["key"]
    with monkeypatch.context() as patched:
        refuse_to_open(patched, bad)
        answer = api("tile", {**table, "key": key, "unit": "1", "level": "0", "first": "0", "last": "3", "nodes": "0"})
        assert answer.status == 503 and json.loads(answer.body) == {"error": f"{bad}: Permission denied"}
        with bad.open("ab") as opened:
            opened.write(b"more")
        assert ask(api, "run", run="good")["steps"] == [0, 2]
        assert ask(api, "run", run="bad")["problems"] == said
        fresh = Api(runs.LocalRuns(tmp_path))
        assert [(each["name"], each["shown"]) for each in ask(fresh, "runs")["runs"]] == [
            ("bad", True),
            ("fine", True),
            ("good", True),
        ]
        assert ask(fresh, "run", run="bad")["problems"] == said and ask(fresh, "run", run="bad")["tensors"] == []
        assert ask(fresh, "run", run="fine")["steps"] == [0, 2]
    assert ask(api, "run", run="bad")["problems"] == [] and ask(api, "run", run="bad")["steps"] == [0, 2]


def test_findings_that_cannot_be_read_are_a_finding(tmp_path, monkeypatch):
    write_run(tmp_path, range(3))
    (tmp_path / "findings.jsonl").write_text("{}")

    opened = os.open

    def refuse(path, *how, **options):
        if str(path).endswith(".jsonl"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *how, **options)

    monkeypatch.setattr(os, "open", refuse)
    found = ask(Api(runs.LocalRuns(tmp_path)), "run", run=".")["findings"]
    (said,) = found
    assert said["rule"] == "findings.jsonl"
    assert said["why"] == f"the file cannot be read ({tmp_path / 'findings.jsonl'} cannot be read: Permission denied)"


def are_shown(local):
    return [each["shown"] for each in local.names()]


def test_a_table_behind_megabytes_of_other_content_is_found(tmp_path):
    with SummaryWriter(tmp_path / "text") as writer:
        writer.add_text("long", "x" * 1_500_000)
    write_run(tmp_path / "run", range(2))
    (text,), (table,) = ([*(tmp_path / name).glob("*tfevents*")] for name in ("text", "run"))
    table.write_bytes(text.read_bytes() + table.read_bytes())
    assert are_shown(runs.LocalRuns(tmp_path)) == [True, False]


def test_a_file_without_tables_is_read_on_from_where_it_ended(tmp_path):
    file = tmp_path / "events.out.tfevents.1.host"
    file.write_bytes(b"x" * 3000 + b"tab")
    local = runs.LocalRuns(tmp_path)
    assert are_shown(local) == [False]
    with file.open("r+b") as opened:
        opened.seek(1000)
        opened.write(b"table/")  # what was read is not read again
    assert are_shown(local) == [False]
    with file.open("ab") as opened:
        opened.write(b"le/")
    assert are_shown(local) == [True]


def test_a_file_that_was_replaced_by_a_larger_one_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_REFRESH", 0.0)
    write_scalars(tmp_path, range(2), loss=1.0)
    (file,) = tmp_path.glob("*tfevents*")
    local = runs.LocalRuns(tmp_path)
    assert are_shown(local) == [False] and local.open(".").tables() == []
    write_run(tmp_path / "other", range(5))
    (other,) = (tmp_path / "other").glob("*tfevents*")
    before = local.open(".").history
    file.write_bytes(other.read_bytes())
    assert are_shown(local) == [True, True]
    assert local.open(".").steps("grad", "norm").tolist() == [0, 1, 2, 3, 4] and local.open(".").history > before


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path):
    write_run(tmp_path / "elsewhere" / "deep" / "run", range(3))
    compared = tmp_path / "compared"
    write_run(compared / "here", range(3))
    (compared / "link").symlink_to(tmp_path / "elsewhere")
    (compared / "here" / "again").symlink_to(compared)
    (compared / "above").symlink_to(tmp_path)
    (tmp_path / "elsewhere" / "back").symlink_to(compared)
    found = runs.LocalRuns(compared)
    assert [each["name"] for each in found.names() if each["shown"]] == ["here", "link/deep/run"]
    assert found.open("link/deep/run").steps("grad", "norm").tolist() == [0, 1, 2]


def test_a_link_may_go_while_folders_are_listed(tmp_path, monkeypatch):
    write_run(tmp_path / "run", range(3))
    (tmp_path / "latest").symlink_to("run")
    monkeypatch.setattr("os.path.islink", lambda path: path.name == "latest" and not path.unlink())
    assert [each["name"] for each in runs.LocalRuns(tmp_path).names()] == ["run"]


def test_a_folder_named_like_an_event_file_is_none(tmp_path):
    write_run(tmp_path / "run", range(3))
    (tmp_path / "run" / "old.tfevents").mkdir()
    (tmp_path / "tfevents of others").mkdir()
    found = runs.LocalRuns(tmp_path)
    assert [each["name"] for each in found.names()] == ["run"]
    assert found.open("run").steps("grad", "norm").tolist() == [0, 1, 2]
