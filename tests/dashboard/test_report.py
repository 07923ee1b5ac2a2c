import base64
import errno
import json
import os
import re
import zlib

import numpy as np
import pytest

from lightning_hooks import RuleError, read_run
from lightning_hooks.cli import main
from lightning_hooks.dashboard.bundle import MODULES
from lightning_hooks.dashboard.report import report, write_report
from lightning_hooks.dashboard.site import FILES

from .browser import drawn, needs_browser, opened
from .runs import write_run, write_scalars

MARKUP = "</script><script>window.pwned=1</script>x"


def content(page):
    data = re.search(r'<script id="data"[^>]*>([^<]*)</script>', page)
    tables = re.search(r'<script id="tables"[^>]*>([^<]*)</script>', page)
    return json.loads(zlib.decompress(base64.b64decode(data[1]))), json.loads(tables[1])


def test_everything_is_in_the_file(tmp_path):
    written = write_run(tmp_path, range(30))
    page = report(tmp_path)
    data, tables = content(page)
    assert data["name"] == tmp_path.name and data["run"]["steps"] == [0, 29]
    level, first, last, packed = tables["grad\nnorm"]
    assert (level, first, last) == (0, 0, 30)
    nodes = [node["row"] for node in data["rows"]["grad\nnorm"]["nodes"]]
    cells = len(nodes) * 30
    raw = zlib.decompress(base64.b64decode(packed))
    least = np.frombuffer(raw, "<f4", cells).reshape(len(nodes), 30)
    head = nodes.index(3)
    np.testing.assert_allclose(least[head], [written[step]["norm"][3] for step in range(30)], rtol=1e-6)
    assert not re.search(r"""(src|href)=["'](?!data:)""", page.split("<script type=")[0])


def test_a_long_run_fits_by_joining_steps_and_keeps_its_extremes(tmp_path):
    def change(step, values):
        if step == 1234:
            values["norm"][2] = 1e9

    write_run(tmp_path / "short", range(1))
    write_run(tmp_path / "long", range(3000), change=change)
    # The page and one step, and less room than 3,000 steps take.
    limit = len(report(tmp_path / "short", 5_000_000)) + 20_000
    page = report(tmp_path / "long", limit)
    assert len(page) <= limit
    data, tables = content(page)
    level, first, last, packed = tables["grad\nnorm"]
    assert level > 0 and last - first == -(-3000 // 2**level)
    nodes = [node["row"] for node in data["rows"]["grad\nnorm"]["nodes"]]
    cells = len(nodes) * (last - first)
    raw = zlib.decompress(base64.b64decode(packed))
    bits = np.frombuffer(raw, "<u4", 2 * cells)
    greatest = (bits[:cells] ^ bits[cells:]).view("<f4").reshape(len(nodes), -1)
    assert greatest[nodes.index(2)].argmax() == 1234 // 2**level and greatest.max() == np.float32(1e9)


@needs_browser
@pytest.mark.slow
def test_a_report_has_the_name_of_its_run_and_says_which_histograms_it_left_out(browser, tmp_path):
    names = [f"layer{i:04d}.weight" for i in range(700)]
    write_run(tmp_path / "my_run", range(60), names=names, histograms=True, stats=["norm"])
    write_report(tmp_path / "my_run", tmp_path / "report.html", limit=700_000)
    where = f"{(tmp_path / 'report.html').as_uri()}#view=row&tensor=grad&stat=norm&row={names[-1]}"
    with opened(browser, where) as page:
        page.wait_for_selector("text=This report holds the histograms of")
        drawn = page.evaluate("() => lightningHooks.meta.histograms.length")
        assert 40 < drawn < 700
        assert page.locator(f"text=This report holds the histograms of {drawn} rows, and none of this one.").is_visible()
        assert page.get_by_label("Run", exact=True).locator("option").all_inner_texts() == ["my_run"]
        page.evaluate("([row]) => lightningHooks.state.set({ row })", names)
        page.wait_for_selector("canvas.histogram")
        page.keyboard.press("5")
        page.wait_for_selector(f"h2:has-text('Gradient: {drawn} histograms')")


def test_names_with_markup_stay_data(tmp_path):
    names = ("</script><script>alert(1)</script>.w", "<!--.b", "שלום.w", "plain")
    write_run(tmp_path, range(3), names=names, tensor=MARKUP)
    page = report(tmp_path)
    data, tables = content(page)
    assert {node["name"] for node in data["rows"][f"{MARKUP}\nnorm"]["nodes"]} >= {*names}
    assert f"{MARKUP}\nnorm" in tables
    assert "alert(1)" not in page and MARKUP not in page


@needs_browser
@pytest.mark.slow
def test_names_with_markup_run_no_script(browser, tmp_path):
    write_run(tmp_path, range(3), tensor=MARKUP)
    write_report(tmp_path, tmp_path / "report.html")
    cell = read_run(tmp_path)._repr_html_().replace(" sandbox=", " data-sandbox=")
    # Whatever the encoding of the page around it is taken to be.
    (tmp_path / "notebook.html").write_text('<meta charset="windows-1252">' + cell, encoding="utf-8")
    with opened(browser, f"{(tmp_path / 'report.html').as_uri()}#view=map") as page:
        drawn(page)
        assert page.evaluate("() => window.pwned") is None
    page = browser.new_page()
    page.goto((tmp_path / "notebook.html").as_uri())
    page.frame_locator("iframe").locator("main > *").first.wait_for()
    assert page.evaluate("() => [window.pwned, frames[0].pwned]") == [None, None]
    page.close()


def test_the_command(tmp_path, capsys):
    write_run(tmp_path / "run", range(4))
    assert main(["report", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report.html").read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'run' / 'report.html'}: 0.")
    out = tmp_path / "new" / "r.html"
    assert main(["report", str(tmp_path / "run"), "--out", str(out)]) == 0 and out.stat().st_size == write_report(
        tmp_path / "run", out
    )


def test_a_disk_that_fills_leaves_the_report_that_was_there(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "run", range(4))
    out = tmp_path / "report.html"
    out.write_text("the last one")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert main(["report", str(tmp_path / "run"), "--out", str(out)]) == 2
    assert "report.html' cannot be written (No space left on device)" in capsys.readouterr().err
    assert out.read_text() == "the last one" and sorted(each.name for each in tmp_path.iterdir()) == ["report.html", "run"]


def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys):
    write_run(tmp_path / "run", range(4))
    for out in (tmp_path, tmp_path / "run" / "report.html" / "below"):
        (tmp_path / "run" / "report.html").write_text("a file")
        assert main(["report", str(tmp_path / "run"), "--out", str(out)]) == 2
        assert capsys.readouterr().err.startswith(f"lightning-hooks: error: out: {str(out)!r} cannot be written (")


def test_messages(tmp_path):
    with pytest.raises(RuleError, match="there is no event file in '.*nowhere'"):
        report(tmp_path / "nowhere")
    write_run(tmp_path / "a", range(2))
    with pytest.raises(RuleError, match="there is no event file in .*; there are runs in .*/a"):
        report(tmp_path)
    write_scalars(tmp_path / "b", range(2), loss=1.0)
    with pytest.raises(RuleError, match="/b' has no table of lightning_hooks and no scalar of a transform"):
        report(tmp_path / "b")
    with pytest.raises(RuleError, match="limit: 1000 bytes is less than the .* of the page"):
        report(tmp_path / "a", 1000)


def test_every_module_is_in_the_report_and_their_names_differ():
    assert {*MODULES} == {name for name in FILES if name.endswith(".js")} - {"main.js"}
    names = []
    for name in MODULES[1:]:
        text = FILES[name].read_text()
        names += re.findall(r"^(?:export )?(?:async )?(?:function|class|const|let) \*?(\w+)", text, re.MULTILINE)
        names += [
            each for group in re.findall(r"^const [\[{]([^\]}]*)[\]}] =", text, re.MULTILINE) for each in group.split(", ")
        ]
    assert len(names) == len({*names}), [name for name in names if names.count(name) > 1]


def test_in_a_notebook(tmp_path):
    write_run(tmp_path, range(3))
    page = read_run(tmp_path)._repr_html_()
    assert page.startswith('<iframe srcdoc="&lt;!doctype html&gt;') and 'sandbox="allow-scripts' in page


def test_as_a_data_frame(tmp_path):
    pytest.importorskip("pandas")
    written = write_run(tmp_path, range(3))
    frame = read_run(tmp_path).to_pandas(stat="norm")
    assert frame.columns.names == ["tensor", "stat", "name"] and frame.index.tolist() == [0, 1, 2]
    assert frame["grad", "norm", "head.weight"][2] == pytest.approx(written[2]["norm"][3], rel=1e-6)
    assert len(read_run(tmp_path).to_pandas().columns) == 24
    with pytest.raises(RuleError, match="no table 'grad nrm'"):
        read_run(tmp_path).to_pandas("grad", "nrm")


@pytest.mark.parametrize(
    "wrong, said",
    [
        (["report", "RUN", "--limit", "nan"], "'nan' is not a number of megabytes above 0"),
        (["report", "RUN", "--limit", "inf"], "'inf' is not a number of megabytes above 0"),
        (["report", "RUN", "--limit", "five"], "'five' is not a number of megabytes above 0"),
        (["view", "RUN", "--port", "70000"], "'70000' is not a port: a whole number from 0"),
        (["view", "RUN", "--port", "-1"], "'-1' is not a port"),
    ],
)
def test_arguments_that_cannot_be(tmp_path, capsys, wrong, said):
    write_run(tmp_path, range(2))
    try:
        code = main([str(tmp_path) if each == "RUN" else each for each in wrong])
    except SystemExit as error:  # of argparse
        code = error.code
    assert code == 2 and said in capsys.readouterr().err
