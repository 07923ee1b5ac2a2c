"""The marks of findings on maps and curves, whatever tensor they show."""

import json

import pytest

from .browser import drawn, needs_browser, opened, place, serving
from .runs import write_run

pytestmark = [needs_browser, pytest.mark.slow]

PARAMS, MODULES = ("net.0.weight", "net.0.bias", "net.2.weight", "head.weight"), ("net.0", "net.1", "net.2", "head")
FINDINGS = [
    {"rule": "Dead", "verdict": "net.0 is dead.", "name": "net.0", "tensor": "output", "step": 5},
    {"rule": "Small", "verdict": "The update is small.", "name": "net.2.weight", "tensor": "update", "step": 9},
    {"rule": "Flat", "verdict": "net.1 is flat.", "name": "net.1", "tensor": "output", "step": 12},
    {"rule": "Forgotten", "verdict": "head.weight is forgotten.", "name": "head.weight", "tensor": "", "step": 3},
]
MARKS = """() => {
  const { rows, marks } = lightningHooks.views.map.panels[0].model;
  return marks.map(({ node, step }) => [node === null ? "" : rows.nodes[node].name, step]);
}"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_run(folder, range(20), names=PARAMS)
    write_run(folder, range(20), names=MODULES, tensor="output")
    (folder / "findings.jsonl").write_text("".join(json.dumps(each) + "\n" for each in FINDINGS))
    with serving(folder) as where:
        yield where


def test_a_finding_is_marked_on_the_maps_of_every_tensor(browser, url):
    with opened(browser, f"{url}#view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        # A module marks its parameters, a parameter itself; of a module without parameters the group around it is marked.
        marks = [["net.0.weight", 5], ["net.0.bias", 5], ["net.2.weight", 9], ["net", 12], ["head.weight", 3]]
        assert page.evaluate(MARKS) == marks
        page.mouse.move(*place(page, "net.0.bias", 5))
        assert "▼ net.0 is dead." in page.locator(".tip").inner_text()
        page.mouse.move(*place(page, "net.0.bias", 6))
        assert "▼" not in page.locator(".tip").inner_text()
        page.mouse.move(*place(page, "net", None))
        assert page.locator(".tip").inner_text().endswith("▼ net.1 is flat.")
    with opened(browser, f"{url}#view=map&tensor=output&stat=norm&folded=%2B") as page:
        drawn(page)
        assert page.evaluate(MARKS) == [["net.0", 5], ["net.2", 9], ["net.1", 12], ["head", 3]]


def test_a_note_has_a_hollow_mark_and_its_own_word_in_the_legend(browser, tmp_path):
    write_run(tmp_path, range(20), names=PARAMS)
    note = {**FINDINGS[1], "severity": "info"}
    (tmp_path / "findings.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (note, FINDINGS[3])))
    with serving(tmp_path) as where, opened(browser, f"{where}#view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        legend = page.locator(".legend").first.inner_text()
        assert "▽ note" in legend and "▼ finding" in legend
        page.mouse.move(*place(page, "net.2.weight", 9))
        assert "▽ The update is small." in page.locator(".tip").inner_text()


def test_a_finding_on_the_whole_run_is_marked_above_the_cells(browser, tmp_path):
    write_run(tmp_path, range(20), names=PARAMS)
    finding = "{ rows: ['', 'head.weight'], step: 8, rule: 'NonFinite' }"
    script = f"async () => (await import('/static/marks.js')).marksOn([{finding}], "
    with serving(tmp_path) as where, opened(browser, f"{where}#view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        marks = page.evaluate(f"{script} lightningHooks.views.map.panels[0].model.rows, 'grad')")
        found = [(each["node"] is None, each["step"], each["text"]) for each in marks]
        assert found == [(True, 8, "NonFinite"), (False, 8, "NonFinite")]
        page.evaluate("(marks) => { const [it] = lightningHooks.views.map.panels; it.model.marks = marks; it.draw(); }", marks)
        x, _ = place(page, "head.weight", 8)
        box = page.locator(".panel canvas").bounding_box()
        page.mouse.move(x, box["y"] + 14)
        assert page.locator(".tip").inner_text() == "▼ NonFinite"


def test_curves_are_marked_at_the_step_of_a_finding(browser, url):
    script = "async ([name, tensor]) => (await import('/static/marks.js')).marksOf(lightningHooks.meta.findings, name, tensor)"
    with opened(browser, f"{url}#view=row&tensor=grad&stat=norm&row=net.0.bias") as page:
        page.wait_for_selector(".chart canvas")
        assert page.evaluate(script, ["net.0.bias", "grad"]) == [{"step": 5, "text": "net.0 is dead."}]
        assert page.evaluate(script, ["net.2", "output"]) == [{"step": 9, "text": "The update is small."}]
        assert page.evaluate(script, ["head", "my/output"]) == [{"step": 3, "text": "head.weight is forgotten."}]
        assert page.evaluate(script, ["net", "output"]) == [] and page.evaluate(script, ["net.2.weight", "output"]) != []
        red = """() => {
          const canvas = document.querySelector(".chart canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const columns = [];
          const isRed = (i) => data[i] === 196 && data[i + 1] === 43 && data[i + 2] === 28;
          for (let i = 0; i < data.length; i += 4) if (isRed(i)) columns.push((i / 4) % canvas.width);
          return [Math.min(...columns), Math.max(...columns), canvas.width];
        }"""
        least, most, width = page.evaluate(red)
        assert 0 < most - least < 14 and 0.2 * width < least < 0.5 * width
