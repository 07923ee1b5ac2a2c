"""Tensors and statistics have titles for people, with their tag beside them; the common ones are listed first."""

import pytest

from .browser import needs_browser, opened, serving
from .runs import write_run

pytestmark = [needs_browser, pytest.mark.slow]

TITLE = """async (names) => {
  const { titleOf } = await import("./static/titles.js");
  return names.map((each) => titleOf(...each));
}"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    for tensor in ("state.exp_avg", "output", "final_grad"):
        write_run(folder, range(3), tensor=tensor)
    with serving(folder) as where:
        yield where


def test_titles_are_words_and_unknown_names_stay(browser, url):
    titles = {
        ("final_grad", "norm"): "Gradient norm after clipping",
        ("grad", "zero_fraction"): "Share of zeros of the gradient",
        ("health/grad", "abs_max"): "Largest magnitude of the gradient (health)",
        ("val_output", "std"): "Output standard deviation in validation",
        ("output.hidden[0]", "mean"): "Output .hidden[0] mean",
        ("update", "ratio"): "Update relative to the parameter",
        ("state.exp_avg", "p99"): "Percentile 99 of optimizer state exp_avg",
        ("units of output/body.1", "abs_max"): "Largest magnitude of units of the output of body.1",
        ("my_tensor", "my_stat"): "My_stat of the my_tensor",
    }
    with opened(browser, url) as page:
        assert page.evaluate(TITLE, [list(each) for each in titles]) == [*titles.values()]


def test_common_names_come_first_with_all_others_below_more(browser, url):
    options = """(label) => [...document.querySelector(`select[aria-label="${label}"]`).children].map((each) =>
      each.children.length ? [each.label, ...[...each.children].map((option) => option.value)] : each.value)"""
    with opened(browser, f"{url}#view=step&tensor=final_grad&stat=norm") as page:
        page.wait_for_selector("h2:has-text('Gradient norm after clipping at step 2')")
        assert page.locator("h2 .tag").inner_text().strip() == "final_grad norm"
        assert page.evaluate(options, "Tensor") == ["final_grad", "output", ["More", "state.exp_avg"]]
        common = ["norm", "std", "mean", "abs_max", "zero_fraction", "nonfinite"]
        listed = page.evaluate(options, "Statistic")
        assert [each for each in listed[:-1]] == [each for each in common if each in listed] and "count" in listed[-1]
        page.get_by_label("Tensor", exact=True).select_option("state.exp_avg")
        page.wait_for_selector("h2:has-text('Optimizer state exp_avg norm at step 2')")
        page.evaluate("() => lightningHooks.state.set({ view: 'row', tensor: 'output', row: 'head.weight' })")
        page.wait_for_selector("h2:has-text('Output of head.weight')")
        heads = [" ".join(each.split("?")[0].split()) for each in page.locator(".card h3").all_inner_texts()]
        assert {"Norm", "Share of zeros"} <= {*heads}
