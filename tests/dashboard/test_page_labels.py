"""Lines and labels of a map: no line for open parts, types and shapes, no overlap; the same colours in every window."""

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lightning_hooks import Watch

from .browser import CHROMIUM, FLAGS, drawn, needs_browser, opened, place, serving
from .runs import fit, write_run

pytestmark = [needs_browser, pytest.mark.slow]

MAP = "view=map&tensor=grad&stat=norm&folded=%2B"
DEEP = [f"blocks.{i}.{part}.{name}" for i in range(24) for part in ("attn", "mlp") for name in ("weight", "bias")]
# The texts that a map writes beside its cells: [text, x, y, width].
WRITTEN = """() => {
  const [panel] = lightningHooks.views.map.panels, written = [];
  const { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (this.canvas === panel.canvas && y > 22) written.push([text, x, y, this.measureText(text).width]);
    fillText.call(this, text, x, y);
  };
  panel.draw();
  CanvasRenderingContext2D.prototype.fillText = fillText;
  return written;
}"""
SCALE = (
    "() => { const { kind, low, high, beyond } = lightningHooks.views.map.scale; return [kind, low, high, beyond ?? null]; }"
)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.ReLU(), nn.Linear(3, 5))
        self.head = nn.Linear(5, 2, bias=False)

    def training_step(self, batch, batch_idx):
        return self.head(self.encoder(batch)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")

    def change(step, values):
        values["norm"][:] = 1 + np.arange(len(DEEP)) / 50
        values["norm"][-8:] = 1000 + step  # far below what is in sight at first

    write_run(folder / "deep", range(3000), names=DEEP, change=change)
    watch = [
        Watch(modules="*", select="leaves", tensors="output", stats="norm"),
        Watch(params="*", tensors="grad", stats="norm"),
    ]
    fit(Net(), folder / "net", watch, 8)
    with serving(folder) as where:
        yield where


def test_colours_do_not_depend_on_the_window_or_on_what_is_scrolled_out_of_sight(browser, url):
    scales = []
    for width, height in ((1400, 870), (800, 600), (500, 400)):
        with opened(browser, f"{url}#run=deep&{MAP}&level=one&fit=0", viewport={"width": width, "height": height}) as page:
            drawn(page)
            scales.append(page.evaluate(SCALE))
            # In a low window the map lies below the curve of the loss.
            page.evaluate("() => document.querySelector('.scroll').scrollIntoView()")
            page.mouse.move(*place(page, DEEP[0], 100))
            page.mouse.wheel(0, 100_000)
            page.wait_for_timeout(300)
            drawn(page)
            assert page.evaluate("() => lightningHooks.views.map.panels[0].drawn.first") > 0
            scales.append(page.evaluate(SCALE))
    assert scales[0][:3] == ["log", 1, 3999] and all(each == scales[0] for each in scales)


def test_colours_are_of_the_shown_steps(browser, url):
    with opened(browser, f"{url}#run=deep&{MAP}&level=one&from=0&to=400") as page:
        drawn(page)
        assert page.evaluate(SCALE)[:3] == ["log", 1, 1447]  # the steps are rounded outwards to blocks of 64


def test_what_is_scrolled_out_of_sight_has_a_scrollbar_that_can_be_seen(browser, url):
    # Playwright hides scrollbars unless it is told not to.
    shown = browser.browser_type.launch(executable_path=CHROMIUM, args=FLAGS, ignore_default_args=["--hide-scrollbars"])
    with opened(shown, f"{url}#run=deep&{MAP}&fit=0") as page:
        drawn(page)
        widths = """() => {
          const scroll = document.querySelector(".scroll");
          return [scroll.offsetWidth - scroll.clientWidth, scroll.scrollHeight > scroll.clientHeight];
        }"""
        assert page.evaluate(widths) == [12, True]
        page.evaluate("() => lightningHooks.state.set({ folded: '-' })")
        drawn(page)
        assert page.evaluate(widths) == [0, False]
    shown.close()


def test_open_parts_have_no_line_and_fold_at_their_labels(browser, url):
    with opened(browser, f"{url}#run=deep&{MAP}") as page:
        drawn(page)
        lines = "() => lightningHooks.views.map.panels[0].model.shown.length"
        assert page.evaluate(lines) == len(DEEP)
        assert [text for text, *_ in page.evaluate(WRITTEN)][:4] == ["▾ blocks", "▾ 0", "▾ attn", "weight"]
        page.mouse.click(*place(page, "blocks.0.attn", None))
        page.wait_for_function(f"() => ({lines})() === {len(DEEP) - 1}")
        drawn(page)
        assert "▸ attn (2)" in [text for text, *_ in page.evaluate(WRITTEN)]
        canvas = page.get_by_role("application")
        canvas.press("Home")
        canvas.press(" ")  # the cursor is on the folded part
        page.wait_for_function(f"() => ({lines})() === {len(DEEP)}")
        canvas.press(" ")  # on a row: folds the part around it
        page.wait_for_function(f"() => ({lines})() === {len(DEEP) - 1}")
        canvas.press("Backspace")
        page.wait_for_function(f"() => ({lines})() === {len(DEEP) - 3}")


@pytest.mark.parametrize("size", [(1400, 870), (800, 600)], ids=["large", "small"])
def test_labels_never_overlap_when_all_rows_fit_the_window(browser, url, size):
    with opened(browser, f"{url}#run=deep&{MAP}", viewport={"width": size[0], "height": size[1]}) as page:
        drawn(page)
        assert page.evaluate("() => lightningHooks.views.map.panels[0].drawn.row") < 9
        written = page.evaluate(WRITTEN)
        assert len(written) > 20 and {"▾ blocks", "▾ 3"} <= {text for text, *_ in written}
        middles = sorted({y for *_, y, _ in written})
        assert min(np.diff(middles)) >= 11
        for y in middles:
            spans = sorted((x, x + width) for _, x, at, width in written if at == y)
            assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))


def test_labels_say_type_and_shape(browser, url):
    with opened(browser, f"{url}#run=net&view=map&tensor=output&stat=norm&folded=%2B") as page:
        drawn(page)
        assert [text for text, *_ in page.evaluate(WRITTEN)] == [
            "▾ encoder",
            "0",
            "ReLU",
            "1",
            "Linear 3→5",
            "head",
            "Linear 5→2",
        ]
        page.mouse.move(*place(page, "encoder", None))
        assert page.locator(".tip").inner_text().startswith("encoder (2 rows)")
    with opened(browser, f"{url}#run=net&{MAP}") as page:
        drawn(page)
        assert [text for text, *_ in page.evaluate(WRITTEN)] == [
            "▾ encoder.1",
            "Linear 3→5",
            "weight",
            "bias",
            "head.weight",
            "Linear 5→2",
        ]
