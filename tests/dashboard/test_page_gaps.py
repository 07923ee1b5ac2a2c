"""The map says why a row was not measured: frozen, in no optimizer, not called, not due."""

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lightning_hooks import Watch
from lightning_hooks.dashboard.report import write_report

from .browser import colors_of, drawn, needs_browser, opened, place, serving
from .runs import fit

pytestmark = [needs_browser, pytest.mark.slow]

MAP = "view=map&tensor=grad&stat=norm&folded=%2B"
REASONS = {
    "frozen.weight": "frozen: requires_grad is off",
    "forgotten.weight": "in no optimizer, so it gets no update",
    "unused.weight": "not called",
    "sparse.weight": "not due: measured every 5 steps",
}


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        for name in ("frozen", "forgotten", "unused", "sparse", "usual"):
            self.add_module(name, nn.Linear(3, 3, bias=False))
        self.frozen.requires_grad_(False)

    def training_step(self, batch, batch_idx):
        return self.usual(self.sparse(self.forgotten(self.frozen(batch)))).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([p for name, p in self.named_parameters() if not name.startswith("f")], 0.01)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    watch = [
        Watch(params=["*", "!sparse.*"], tensors="grad", stats="norm"),
        Watch(params="sparse.*", tensors="grad", stats="norm", every_n_steps=5),
        Watch(modules="*", select="leaves", tensors="output", stats="norm"),
    ]
    with pytest.warns(UserWarning, match="unused"):  # the module is never called
        fit(Net(), folder, watch, 20)
    return folder


def look(page):
    drawn(page)
    page.wait_for_function("() => lightningHooks.views.map.panels[0].model.gaps")
    keys = [each.strip() for each in page.locator(".legend .special").all_inner_texts()]
    assert {"frozen", "in no optimizer", "not called", "not due"} <= {*keys}
    for name, reason in REASONS.items():
        page.mouse.move(*place(page, name, 2))
        assert page.locator(".tip").inner_text().endswith(f"grad norm: not measured ({reason})")
    page.mouse.move(*place(page, "sparse.weight", 4))
    assert "not measured" not in page.locator(".tip").inner_text()
    page.mouse.move(*place(page, "frozen.weight", None))
    assert page.locator(".tip").inner_text().endswith(REASONS["frozen.weight"])
    assert page.locator(".note:visible").inner_text() == "1 parameter is in no optimizer and gets no update: forgotten.weight."


def test_each_reason_is_drawn_and_said(browser, logs):
    with serving(logs) as where, opened(browser, f"{where}#{MAP}&row=forgotten.weight&step=3") as page:
        look(page)
        page.wait_for_selector(".picked >> text=not measured (in no optimizer, so it gets no update)")
        page.goto(f"{where}#view=map&tensor=output&stat=norm&folded=%2B")
        page.wait_for_function(
            "() => (({ tensor, gaps }) => tensor === 'output' && gaps)(lightningHooks.views.map.panels[0]?.model ?? {})"
        )
        drawn(page)
        page.mouse.move(*place(page, "unused", 2))
        page.wait_for_function("() => document.querySelector('.tip').textContent.endsWith('(its module was not called)')")


def test_a_report_says_it_too(browser, logs, tmp_path):
    write_report(logs, tmp_path / "report.html")
    with opened(browser, f"file://{tmp_path / 'report.html'}#{MAP}") as page:
        look(page)


def test_the_row_view_says_why_a_row_was_not_measured(browser, logs):
    with serving(logs) as where, opened(browser, f"{where}#view=row&tensor=grad&stat=norm&row=forgotten.weight") as page:
        missing = page.locator(".unmeasured")
        missing.wait_for()
        assert missing.inner_text().strip() == f"Not measured in these steps ({REASONS['forgotten.weight']}): norm."
        assert page.locator(".card h3").all_inner_texts()[0].startswith("Number of elements")  # norm has no empty card
        page.evaluate("() => lightningHooks.state.set({ row: 'usual.weight' })")
        page.wait_for_selector(".card h3:has-text('norm')")
        assert missing.count() == 0


def test_the_step_view_says_why_a_bar_is_missing(browser, logs):
    with (
        serving(logs) as where,
        opened(browser, f"{where}#view=step&tensor=grad&stat=norm&step=2&row=forgotten.weight") as page,
    ):
        readout = page.locator(".bar-readout")
        page.wait_for_selector(".bar-readout >> text=forgotten.weight")
        assert readout.inner_text() == f"forgotten.weight: not measured ({REASONS['forgotten.weight']})"
        keys = [each.strip() for each in page.locator(".legend .special").all_inner_texts()]
        assert {*keys} == {"frozen", "in no optimizer", "not called", "not due"}
        page.evaluate("() => lightningHooks.state.set({ stat: 'count', row: 'forgotten.weight', step: 4 })")
        page.wait_for_selector(".bar-readout >> text='forgotten.weight: 0'")
        page.wait_for_timeout(100)
        assert "exactly 0" in page.locator(".legend").inner_text()
        zeros = colors_of(page, "lightningHooks.views.step.canvas").get("178,184,198", 0)
        assert zeros > 100
