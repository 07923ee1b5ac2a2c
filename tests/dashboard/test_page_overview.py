"""The overview: what is wrong stands first, with its curve, its evidence and what to do; a healthy run says what looked."""

import json
import os

import pytest

from lightning_hooks import HealthMonitor
from lightning_hooks.dashboard.report import write_report
from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.journal import Journal
from lightning_hooks.health.learning import LossCourse
from lightning_hooks.health.rule import Severity, Symptom
from lightning_hooks.health.summary import summary_of
from tests import forked

from .browser import colors_of, drawn, needs_browser, opened, serving
from .runs import NAMES, write_run

pytestmark = [needs_browser, pytest.mark.slow]

SIZE = {"width": 1400, "height": 870}
MARKUP = "<img src=x onerror=alert(1)>"


def finding(number, rule, row, step, severity=Severity.WARNING, **fields):
    symptoms = tuple(
        Symptom(row, tensor="grad", step=step + i, measured=20.0, threshold=10.0, text=f"gradient reaches {20 + i}")
        for i in range(8)
    )
    message = f"{row or 'the run'}: see `grad`."
    return Finding(
        rule,
        rows=(row,),
        tensor="grad",
        first_step=step,
        last_step=step,
        severity=severity,
        evidence=symptoms,
        message=message,
        next_steps=("Look.",),
        number=number,
        source="a book",
        **fields,
    )


def sick_events():
    small = finding(1, "GradientSpike", NAMES[0], 12, is_over=20)
    large = finding(2, "ExplodingGradient", NAMES[1], 30, Severity.CRITICAL)
    alone = finding(3, "VanishingGradient", NAMES[2], 50)
    note = finding(4, "MassiveActivation", NAMES[3], 60, Severity.INFO)
    spike = finding(5, "LossSpike", "", 70)
    of_cause = (large.fingerprint, small.fingerprint), ("Divide it by `10`.",), "likely", ("One batch: then it comes back.",)
    cause = Cause("LearningRateTooHigh", "Steps are too large.", *of_cause, Severity.CRITICAL, 12, (2, 1))
    return [*(Event("new", 80, each) for each in (small, note, alone, large, spike)), Event("cause", 80, cause=cause)]


def write_journal(folder, events, has_ended=True, ran=("LossSpike", "NonFinite"), could_not=None, has_learned=True):
    journal = Journal(folder)
    journal.write([Event("begin", 0), *events])
    if has_ended:
        found = {
            "findings": [each.finding for each in events if each.finding],
            "causes": [each.cause for each in events if each.cause],
        }
        found["course"] = LossCourse(2.31, 2.3, has_learned)
        summary = summary_of(99, 100, ran=ran, could_not=could_not or {}, failed={}, accepted=["DeadUnits/head"], **found)
        journal.write_summary(summary)
        journal.write([Event("end", 99)])
    journal.close()


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    for name in ("sick", "fine", "at chance", "going on", "it's not looked at", "nasty", "notes"):
        write_run(folder / name, range(100), scalars={"run/loss": 0.5})
    write_journal(folder / "sick", sick_events())
    write_journal(folder / "fine", [], could_not={"ReplicasDiffer": "there is one rank only"})
    write_journal(folder / "at chance", [], has_learned=False)
    write_journal(folder / "going on", [], has_ended=False)
    write_journal(folder / "notes", [Event("new", 9, finding(1, "MassiveActivation", NAMES[0], 9, Severity.INFO))])
    nasty = finding(1, MARKUP, MARKUP, 5, cause=None)
    of_others = json.dumps(
        {"rule": MARKUP, "severity": MARKUP, "verdict": MARKUP, "why": MARKUP, "next": MARKUP, "step": MARKUP}
    )
    write_journal(folder / "nasty", [Event("new", 9, nasty)], ran=[MARKUP], could_not={MARKUP: MARKUP})
    with (folder / "nasty" / "findings.jsonl").open("a") as file:
        file.write(of_others + "\n")
    return folder


@pytest.fixture(scope="module")
def url(logdir):
    with serving(logdir) as where:
        yield where


def test_the_worst_comes_first_and_findings_stand_under_their_cause(browser, url):
    with opened(browser, f"{url}#run=sick", viewport=SIZE) as page:
        page.wait_for_selector(".finding")
        assert (
            page.locator(".verdict").inner_text()
            == "Not healthy: 1 cause, 5 findings (1 critical, 3 warnings, 1 note), the worst first."
        )
        heads = [" ".join(text.split()) for text in page.locator(".finding h3").all_inner_texts()]
        assert heads == [
            "Critical LearningRateTooHigh likely since step 12",
            "Warning VanishingGradient since step 50 ?",
            "Warning LossSpike since step 70 ?",
            "Info MassiveActivation since step 60 ?",
        ]
        first = page.locator(".finding").first
        assert first.locator(".finding-text > p").first.inner_text() == "Steps are too large."
        assert first.locator(".next li").first.inner_text() == "Divide it by 10."
        assert first.locator(".next code").first.inner_text() == "10"
        assert first.locator(".reason > summary").all_inner_texts() == [
            f"critical\nExplodingGradient in {NAMES[1]}, since step 30: gradient reaches 20",
            f"warning\nGradientSpike in {NAMES[0]}, since step 12: gradient reaches 20 (over since step 20)",
        ]
        # Severities differ by the shape of their sign, not by their colour only.
        shapes = page.locator(".finding h3 .sign path:first-child").evaluate_all(
            "(all) => all.map((path) => path.getAttribute('d'))"
        )
        assert len({*shapes}) == 3 and shapes[1] == shapes[2]
        first.get_by_text("What else it could be").click()
        assert first.get_by_text("One batch: then it comes back.").is_visible()


def test_evidence_unfolds_and_leads_to_the_row_and_the_step(browser, url):
    with opened(browser, f"{url}#run=sick", viewport=SIZE) as page:
        page.wait_for_selector(".finding")
        reason = page.locator(".reason").first
        assert not reason.get_by_text("gradient reaches 21").is_visible()
        reason.locator("summary").first.press("Enter")
        lines = reason.locator("li").all_inner_texts()
        assert f"grad of {NAMES[1]}, step 31: gradient reaches 21" in lines and "Look." in lines
        asked = reason.get_by_label("Where is the threshold from?")
        asked.press("Enter")
        assert reason.get_by_text("Where the threshold is from: a book.").is_visible()
        asked.press("Escape")
        assert not reason.get_by_text("Where the threshold is from: a book.").is_visible()
        assert not reason.get_by_text("gradient reaches 27").is_visible()
        reason.get_by_text("and 2 measurements more").click()
        assert reason.get_by_text("gradient reaches 27").is_visible()
        reason.get_by_role("button", name="step 31").click()
        drawn(page)
        page.wait_for_selector(f".picked strong:has-text('{NAMES[1]}')")
        assert page.evaluate("() => ['row', 'step', 'view'].map((name) => lightningHooks.state[name])") == [
            NAMES[1],
            "31",
            "map",
        ]


def test_the_curve_beside_a_finding_is_that_of_its_row_with_a_mark_at_its_step(browser, url):
    with opened(browser, f"{url}#run=sick", viewport=SIZE) as page:
        page.wait_for_selector(".finding-curve .curve-value >> text=step 30")
        captions = page.locator(".finding-curve figcaption").all_inner_texts()
        assert captions == [f"grad norm of {NAMES[1]}", f"grad norm of {NAMES[2]}", "run/loss", f"grad norm of {NAMES[3]}"]
        first = page.locator(".finding-curve").first
        assert first.get_by_role("img").get_attribute("aria-label") == f"grad norm of {NAMES[1]}, with a mark at step 30"
        found = colors_of(page, "document.querySelector('.finding-curve canvas')")
        assert found["179,18,31"] > 40  # the mark, in the colour of critical findings
        assert found["31,79,209"] > 100  # the curve
        # Moving over one curve moves the crosshair of all.
        box = first.locator("canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 40)
        step = page.evaluate("() => lightningHooks.views.overview.crosshair.step")
        assert 50 < step < 80
        assert page.locator(".strip-readout").inner_text() == f"step {step}: 0.5"
        assert page.locator(".curve-value").nth(1).inner_text().startswith(f"step {step}: ")
        assert page.locator(".strip .crosshair").is_visible()
        page.mouse.move(5, 5)
        assert page.locator(".strip-readout").inner_text() == "step 99: 0.5"
        assert not page.locator(".strip .crosshair").is_visible()


def test_a_healthy_run_says_which_rules_looked(browser, url, logdir, tmp_path):
    write_report(logdir / "fine", tmp_path / "report.html")
    for where in (f"{url}#run=fine", (tmp_path / "report.html").as_uri()):
        with opened(browser, where, viewport=SIZE) as page:
            page.wait_for_selector(".verdict")
            assert page.locator(".verdict").inner_text() == "Healthy: 2 rules found nothing in 100 steps."
            page.locator(".checks summary").click()
            assert page.locator(".chips li").all_inner_texts() == ["LossSpike", "NonFinite"]
            assert page.get_by_text("ReplicasDiffer: there is one rank only").is_visible()
            assert page.get_by_text("Accepted, so not told: DeadUnits/head.").is_visible()
            assert page.locator(".finding").count() == 0


def test_a_run_that_does_not_show_that_it_has_learned_is_not_called_healthy(browser, url):
    with opened(browser, f"{url}#run=at chance", viewport=SIZE) as page:
        page.wait_for_selector(".verdict")
        said = "No problem found: 2 rules found nothing in 100 steps; the loss went from 2.31 to 2.3."
        assert page.locator(".verdict").inner_text() == said


def test_a_run_that_goes_on_and_one_with_notes_only(browser, url):
    with opened(browser, f"{url}#run=going on") as page:
        page.wait_for_selector("text=Nothing found so far: the training goes on, or was ended from outside.")
        assert page.locator(".checks").count() == 0
    with opened(browser, f"{url}#run=notes") as page:
        page.wait_for_selector(".verdict >> text=Notes: 1 note.")


def test_a_run_that_nobody_looked_at_offers_the_command_for_it(browser, url, logdir):
    with opened(browser, f"{url}#run=it's not looked at") as page:
        page.wait_for_selector("text=Not examined: this run has no findings of a HealthMonitor.")
        folder = str(logdir / "it's not looked at").replace("'", "'\"'\"'")
        assert page.locator("code.command").inner_text() == f"lightning-hooks doctor '{folder}'"
        assert "no health rule was active" not in page.locator("main").inner_text()


def test_markup_in_findings_is_text(browser, url):
    with opened(browser, f"{url}#run=nasty") as page:
        page.wait_for_selector(".checks summary")
        for summary in page.locator("summary").all():
            summary.click()
        assert page.locator("main img").count() == 0
        assert MARKUP in page.locator(".finding").first.inner_text() and MARKUP in page.locator(".checks").inner_text()


def test_the_sign_of_a_finding_in_the_strip_leads_to_its_card(browser, url):
    with opened(browser, f"{url}#run=sick", viewport={"width": 800, "height": 600}) as page:
        page.wait_for_selector(".sign-button")
        names = page.locator(".sign-button").evaluate_all("(all) => all.map((each) => each.getAttribute('aria-label'))")
        assert names[0] == "warning GradientSpike, since step 12" and len(names) == 5
        page.get_by_role("button", name="warning LossSpike, since step 70").press("Enter")
        focused = page.evaluate("() => document.activeElement.querySelector('.finding-name').textContent")
        assert focused == "LossSpike"
        box = page.locator(".finding").nth(2).bounding_box()
        assert 0 <= box["y"] and box["y"] + box["height"] <= 600


def test_a_card_is_copied_and_shows_how_to_accept_it(browser, url):
    with opened(browser, f"{url}#run=sick", viewport=SIZE) as page:
        page.wait_for_selector(".finding")
        page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
        page.get_by_role("button", name="Copy as Markdown").first.press("Enter")
        page.wait_for_selector(".copy >> text=Copied")
        copied = page.evaluate("() => window.copied")
        assert copied.startswith(
            "**Critical: LearningRateTooHigh** (likely), since step 12, run `sick`\n\nSteps are too large.\n\n"
            "What to do:\n\n- Divide it by `10`.\n\n"
            f"Findings:\n\n- **ExplodingGradient**, since step 30: {NAMES[1]}: see `grad`.\n"
        )
        card = page.locator(".finding").nth(1)
        fine = card.get_by_role("button", name="This is fine")
        assert not card.locator(".acceptance").is_visible()
        fine.press("Enter")
        assert fine.get_attribute("aria-expanded") == "true"
        python, yaml = card.locator(".acceptance code").all_inner_texts()
        assert yaml == f'accept: ["VanishingGradient/{NAMES[2]}"]'
        assert eval(python, {"HealthMonitor": HealthMonitor}).accept == [f"VanishingGradient/{NAMES[2]}"]
        spike = page.locator(".finding").nth(2)
        spike.get_by_role("button", name="This is fine").click()
        assert 'accept: ["LossSpike"]' in spike.inner_text()


def test_a_report_has_no_run_to_compare_with(browser, logdir, tmp_path):
    write_report(logdir / "sick", tmp_path / "report.html")
    with opened(browser, (tmp_path / "report.html").as_uri(), viewport=SIZE) as page:
        page.wait_for_selector(".finding")
        assert page.locator(".card-actions").first.inner_text().split("\n") == ["Map", "Copy as Markdown", "This is fine"]
        assert not page.get_by_role("tab", name="Runs").is_visible()


def test_cards_have_heads_of_one_height_and_little_empty_room(browser, url):
    with opened(browser, f"{url}#run=sick", viewport=SIZE) as page:
        page.wait_for_selector(".cards > .card")
        bottom = "(each) => each.getBoundingClientRect().bottom"
        room = f"(all) => all.map((card) => ({bottom})(card) - ({bottom})(card.lastElementChild))"
        assert all(each < 40 for each in page.locator(".cards > .card").evaluate_all(room))
        heights = page.locator(".cards > .card h3").evaluate_all("(all) => all.map((head) => head.offsetHeight)")
        assert len({*heights}) == 1


def test_a_run_that_is_read_for_long_has_grey_bars_in_its_place(browser, url):
    with opened(browser, f"{url}#run=fine", viewport=SIZE) as page:
        page.wait_for_selector(".vital")
        held = []
        page.route("**/data/run?*", lambda route: held.append(route), times=1)
        page.get_by_label("Run", exact=True).select_option("sick")
        page.wait_for_selector(".skeleton >> text=Reading the run")
        assert page.locator(".verdict").count() == 0
        page.route("**/data/overview?*", lambda route: held.append(route), times=1)
        held.pop(0).continue_()
        page.wait_for_selector(".finding")  # the cards do not wait for the charts
        assert page.locator(".skeleton.cards").is_visible() and page.locator(".run-head").count() == 0
        held.pop(0).continue_()
        page.wait_for_selector(".run-summary")
        assert not any(bars.is_visible() for bars in page.locator(".skeleton").all())


def write_many(folder):
    """A cause whose decisive finding has 30 rows, and rules that could not look."""
    write_run(folder, range(20), scalars={"run/loss": 0.5})
    rows = tuple(f"layer.{i}" for i in range(30))
    symptoms = (Symptom(rows[0], tensor="grad", step=3, measured=0.0, threshold=0.0, text="no gradient"),)
    many = Finding(
        "NoGradient",
        rows=rows,
        tensor="grad",
        first_step=3,
        last_step=3,
        severity=Severity.WARNING,
        evidence=symptoms,
        message="layer.0, then 29 more: no gradient.",
        number=1,
    )
    loss = Finding(
        "NonFinite",
        rows=("", "head"),
        tensor="",
        first_step=5,
        last_step=5,
        severity=Severity.INFO,
        evidence=(),
        message="The loss, then 1 more: not finite.",
        number=2,
    )
    cause = Cause(
        "Cut",
        "Cut: layer.0, then 29 more.",
        (many.fingerprint, loss.fingerprint),
        confidence="possible",
        first_step=3,
        numbers=(1, 2),
    )
    write_journal(
        folder,
        [Event("new", 9, many), Event("new", 9, loss), Event("cause", 9, cause=cause)],
        could_not={"ReplicasDiffer": "one rank"},
    )


def test_shortened_names_and_words_of_confidence_explain_themselves(browser, tmp_path):
    write_many(tmp_path)
    with serving(tmp_path) as where, opened(browser, where, viewport=SIZE) as page:
        page.wait_for_selector(".finding")
        sentence = page.locator(".finding-text > p").first
        names = page.get_by_role("button", name="then 29 more").first
        assert sentence.inner_text() == "Cut: layer.0, then 29 more."
        assert (
            names.get_attribute("title").endswith(", layer.20 and 9 more") and names.get_attribute("aria-expanded") == "false"
        )
        names.press("Enter")
        assert sentence.inner_text().endswith(", layer.28, layer.29).") and names.get_attribute("aria-expanded") == "true"
        names.press("Enter")
        assert sentence.inner_text() == "Cut: layer.0, then 29 more."
        possible = page.get_by_role("button", name="possible")
        assert possible.get_attribute("title").startswith("possible: it explains the finding, and other reasons would too.")
        possible.press("Space")
        assert "What tells them apart stands under" in page.locator(".finding h3").inner_text()
        reasons = page.locator(".reason > summary")
        assert (
            reasons.nth(1)
            .inner_text()
            .endswith("NonFinite in the loss, then 1 more, since step 5: The loss, then 1 more: not finite.")
        )
        reasons.first.click()
        also = page.locator(".reason .soft").first
        assert also.inner_text().endswith("layer.20 and 9 more.")
        also.get_by_role("button").click()
        assert also.inner_text().endswith(
            ": layer.21, layer.22, layer.23, layer.24, layer.25, layer.26, layer.27, layer.28, layer.29."
        )
        checks = page.locator(".checks")
        assert checks.inner_text() == "Checked by 2 health rules; 1 more could not check this run"
        checks.locator("summary").press("Enter")
        assert checks.locator("ul").last.inner_text() == "ReplicasDiffer: one rank"


SICK = {
    "dead_layer": ("critical", "ActivationsDead", "encoder.3"),
    "forgotten": ("warning", "ParametersForgotten", "encoder.0.bias"),
    "rate_too_high": ("critical", "LearningRateTooHigh", "Divide the learning rate by 10"),
    "log_of_zero": ("critical", "NumericalRange", "Bound what the operation reads"),
    "too_large": ("warning", "InitializationTooLarge", "encoder.2"),
}


@pytest.fixture(scope="module")
def sick_url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sick")
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = forked.run(["-m", "examples.sick", str(folder)], environ)
    assert done.returncode == 0, done.stderr
    with serving(folder) as where:
        yield where


@pytest.mark.parametrize("name", SICK)
def test_what_is_wrong_stands_on_the_first_screen(browser, sick_url, name):
    severity, cause, said = SICK[name]
    with opened(browser, f"{sick_url}#run={name}", viewport=SIZE) as page:
        page.wait_for_selector(".finding-curve .curve-value:not(:empty)")
        card = page.locator(".finding").first
        assert (
            card.get_attribute("class") == f"finding {severity}" and card.locator(".finding-name").first.inner_text() == cause
        )
        assert said in card.inner_text()
        box = card.bounding_box()
        assert box["y"] + box["height"] <= SIZE["height"]
        if name == "forgotten":  # its parameters have no update, which is the fault
            assert card.locator(".finding-curve").inner_text().split("\n") == [
                "update ratio of encoder.0.bias",
                "not measured in these steps: in no optimizer, so it gets no update",
            ]
        else:
            assert card.locator("canvas").is_visible()


def test_a_healthy_example_is_said_to_be_healthy(browser, sick_url):
    with opened(browser, f"{sick_url}#run=healthy", viewport=SIZE) as page:
        page.wait_for_selector(".chips li", state="attached")
        rules = page.locator(".chips li").count()
        assert page.locator(".verdict").inner_text() == f"Healthy: {rules} rules found nothing in 150 steps." and rules > 20
        assert page.locator(".finding").count() == 0 and not page.locator(".chips li").first.is_visible()
        heads = page.locator(".vital h3").all_inner_texts()
        assert [head.split("\n")[-1] for head in heads] == [
            "The loss fell",
            "Updates are usual",
            "Few dead units",
            "The gradient norm is steady",
        ]
        assert page.locator(".judged").first.inner_text().startswith("Learned: at the end the loss is below that of steps 20")
        page.get_by_label("Where is this from?").first.click()
        assert "TheDeepChecker" in page.locator(".judged .source").first.inner_text()
        assert page.locator(".unusual tbody tr").count() == 5
        facts = " ".join(page.locator(".run-head").inner_text().split())
        assert facts.startswith("Optimizer AdamW Rate 0.001 Batch 32 Precision 32-true Parameters 8,970 Duration ")
        page.locator(".unusual .link").first.press("Enter")
        drawn(page)
        assert page.evaluate("() => lightningHooks.state.view") == "map"


def test_a_card_leads_to_the_map_and_to_the_last_healthy_run(browser, sick_url):
    with opened(browser, f"{sick_url}#run=dead_layer", viewport=SIZE) as page:
        page.get_by_role("button", name="Map", exact=True).first.click()
        drawn(page)
        shown = "() => ['tensor', 'row', 'other', 'map'].map((name) => lightningHooks.state[name])"
        assert page.evaluate(shown) == ["input", "head", "", "viridis"]
        page.go_back()
        compare = page.get_by_role("button", name="Compare with the last healthy run").first
        assert compare.get_attribute("title").startswith("Compare with healthy, the last run here")
        compare.click()
        drawn(page)
        assert page.evaluate(shown)[2] == "healthy"
    with opened(browser, f"{sick_url}#run=log_of_zero", viewport=SIZE) as page:
        # The loss has no row in a map. The button leads to the row at which the finding was seen too.
        page.get_by_role("button", name="Map", exact=True).first.click()
        drawn(page)
        assert page.evaluate(shown)[1] != ""
