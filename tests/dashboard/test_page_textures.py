"""What is no number on a map: told apart by colours and by patterns, and found again by an outline."""

import itertools

import numpy as np
import pytest

from .browser import colors, drawn, needs_browser, opened, place, serving
from .runs import NAMES, STATS, write_run

pytestmark = [needs_browser, pytest.mark.slow]

MAP = "view=map&tensor=grad&stat=norm&folded=%2B"
ZERO = "178,184,198"
# The pixels of a square of the first map, as [side, side, 3].
PIXELS = """([x, y, side]) => {
  const { canvas } = lightningHooks.views.map.panels[0];
  const box = canvas.getBoundingClientRect();
  const { data } = canvas.getContext("2d").getImageData(x - box.left - side / 2, y - box.top - side / 2, side, side);
  return [...data].filter((_, i) => i % 4 < 3);
}"""
# From linear RGB to what a deuteranope sees (Machado et al. 2009, severity 1) and to grey.
SIGHTS = {
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "grey": [[0.2126, 0.7152, 0.0722]] * 3,
}


def pixels(page, where, side=8):
    return np.array(page.evaluate(PIXELS, [*where, side])).reshape(side, side, 3)


def special(step, values):
    """A run whose rows are zero, NaN, infinite and not measured from step 10 on."""
    if step >= 10:
        values["norm"][0], values["norm"][1], values["norm"][2] = 0, np.nan, np.inf
        for stat in STATS:
            values[stat][3] = 0 if stat == "count" else np.nan


def test_exact_zeros_have_a_colour_of_their_own_and_the_legend_says_so(browser, tmp_path):
    def change(step, values):
        values["norm"][:] = 1e-9 if step % 2 else 1.0
        values["norm"][0] = 0
        values["norm"][1] = 0 if step < 10 else 1e-9

    write_run(tmp_path, range(20), change=change)
    with serving(tmp_path) as where, opened(browser, f"{where}#{MAP}&level=one") as page:
        drawn(page)
        assert page.locator(".legend >> text=exactly 0").is_visible()
        scale = page.evaluate("() => { const { kind, low, high } = lightningHooks.views.map.scale; return [kind, low, high]; }")
        assert scale == ["log", pytest.approx(1e-9), 1]  # zeros are not part of the scale
        assert [
            ZERO in {",".join(map(str, each)) for each in pixels(page, place(page, NAMES[1], step)).reshape(-1, 3)}
            for step in (5, 15)
        ] == [
            True,
            False,
        ]
        assert colors(page)[ZERO] > 1000


def test_a_cell_of_several_steps_is_zero_only_if_all_of_them_are(browser, tmp_path):
    def change(step, values):
        values["norm"][:] = 0
        values["norm"][1] = 1 if step % 4 == 0 else 0
        values["norm"][2] = np.nan if step % 4 == 0 else 0

    write_run(tmp_path, range(8000), change=change)
    with serving(tmp_path) as where, opened(browser, f"{where}#{MAP}") as page:
        drawn(page)
        assert page.evaluate("() => lightningHooks.views.map.panels[0].drawn.level") >= 2
        kinds = """([name]) => {
          const panel = lightningHooks.views.map.panels[0], { drawn, model } = panel;
          const segment = model.cells.tile(drawn.level, drawn.firstTile).get(model.rows.rowByName.get(name));
          return [...new Set(segment.kinds)];
        }"""
        assert [page.evaluate(kinds, [name]) for name in NAMES[:3]] == [[3], [0], [1]]


def test_a_single_element_that_is_not_finite_can_be_seen_among_zeros(browser, tmp_path):
    def change(step, values):
        values["nonfinite"][1] = step == 12

    write_run(tmp_path, range(20), change=change)
    hash = MAP.replace("norm", "nonfinite")
    for scale in ("auto", "linear", "log", "symlog"):
        with serving(tmp_path) as where, opened(browser, f"{where}#{hash}&scale={scale}&row={NAMES[1]}&step=12") as page:
            drawn(page)
            one, zero = (pixels(page, place(page, NAMES[1], step), 4).mean((0, 1)) for step in (12, 6))
            assert np.abs(one - zero).max() > 60, scale
            grey = [[0.2126, 0.7152, 0.0722] @ each for each in (one, zero)]
            assert abs(grey[0] - grey[1]) > 40, scale


def test_the_selected_cell_has_an_outline_in_black_and_white(browser, tmp_path):
    write_run(tmp_path, range(3000))
    with serving(tmp_path) as where, opened(browser, f"{where}#{MAP}&row={NAMES[2]}&step=1800") as page:
        drawn(page)
        page.wait_for_selector(".picked >> text=steps 1,800")
        around = pixels(page, place(page, NAMES[2], 1800), 18).reshape(-1, 3)
        assert (around.max(1) < 40).sum() > 20 and (around.min(1) > 215).sum() > 20
        # It moves with a click, and a link to a step out of the shown ones shows all steps.
        page.mouse.click(*place(page, NAMES[0], 300))
        selected = """() => {
          const { selected, rows } = lightningHooks.views.map.panels[0].model;
          return [rows.nodes[selected.node].name, selected.step];
        }"""
        name, step = page.evaluate(selected)
        assert name == NAMES[0] and abs(step - 300) < 5
        page.evaluate("() => lightningHooks.zoomTo(0, 100)")
        drawn(page)
        assert page.evaluate("() => lightningHooks.state.to") == "100"
        page.evaluate("(row) => lightningHooks.state.set({ row, step: 2900 })", NAMES[1])
        page.wait_for_function("() => lightningHooks.state.to === ''")
        drawn(page)
        assert page.evaluate(selected) == [NAMES[1], 2900]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_textures_differ_without_colours(browser, tmp_path, theme):
    write_run(tmp_path, range(20), change=special)
    with serving(tmp_path) as where, opened(browser, f"{where}#{MAP}", color_scheme=theme) as page:
        drawn(page)
        found = {
            kind: pixels(page, place(page, name, 15), 16)
            for kind, name in zip(("zero", "NaN", "infinite", "gap"), NAMES, strict=True)
        }
        for sight, matrix in SIGHTS.items():
            seen = {
                kind: (255 * np.clip((each / 255) ** 2.2 @ np.array(matrix).T, 0, 1) ** (1 / 2.2))
                for kind, each in found.items()
            }
            for (a, x), (b, y) in itertools.combinations(seen.items(), 2):
                # Also after the mean colour is taken away, many pixels differ: the patterns are others.
                x, y = x - x.mean((0, 1)), y - y.mean((0, 1))
                share = (np.abs(x - y).max(2) > 20).mean()
                assert share > 0.15, (theme, sight, a, b, share)
        keys = page.locator(".legend .special").all_inner_texts()
        assert [key.strip() for key in keys] == ["NaN", "infinite", "exactly 0", "not measured"]
