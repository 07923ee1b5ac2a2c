"""The units of one row over the steps, as a heat map of their own."""

import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, Units, Watch
from tests.callbacks.models import ValNet, data, trainer_of

from .browser import drawn, needs_browser, opened, place, serving

pytestmark = [needs_browser, pytest.mark.slow]


class HalfDead(ValNet):
    """Two of the eight units behind the rectifier are zero for every sample."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            nn.init.constant_(self.body[0].weight[2:4], 0.0)
            nn.init.constant_(self.body[0].bias[2:4], -1.0)


def test_dead_units_are_a_row_of_the_page_and_each_unit_has_a_line_in_a_map_of_its_own(browser, tmp_path):
    torch.manual_seed(0)
    rule = Watch(modules="body.1", tensors="output", units=Units(vectors=True), every_n_steps=1)
    monitor = StatsMonitor([rule], logdir=str(tmp_path))
    trainer_of(tmp_path, monitor, max_steps=6).fit(HalfDead(), data(6), data(1))
    with serving(tmp_path) as where:
        with opened(browser, f"{where}#view=map&tensor=output&stat=dead_units&folded=%2B") as page:
            drawn(page)
            page.mouse.move(*place(page, "body.1", 3))
            assert "output dead_units: 0.25" in page.locator(".tip").inner_text()
        with opened(browser, f"{where}#view=map&tensor=units of output%2Fbody.1&stat=abs_max&folded=%2B") as page:
            drawn(page)
            names = page.evaluate("() => lightningHooks.views.map.panels[0].model.rows.nodes.map((node) => node.name)")
            assert {*map(str, range(8))} <= {*names}
            page.mouse.move(*place(page, "2", 3))
            assert "abs_max: 0" in page.locator(".tip").inner_text()
            page.mouse.move(*place(page, "0", 3))
            assert "abs_max: 0" not in page.locator(".tip").inner_text().replace("abs_max: 0.", "abs_max: x.")
