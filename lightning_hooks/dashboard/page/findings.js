// The findings of health rules as cards: what is wrong, what to try, the curve that shows it, and the evidence behind it.

import { cardActions } from "./cardactions.js";
import { disclosure, furtherNames, namesTitle, question, rowsInShort, withNames } from "./disclosure.js";
import { h, several } from "./dom.js";
import { curveOf } from "./findingcurve.js";
import { growthFigure, hasGrowth } from "./growth.js";
import { recordParts } from "./records.js";
import { badgeOf, severityOf, signOf, worstOf } from "./severity.js";

const SHOWN = 6; // findings of a cause, and evidence lines of a finding, that are listed at first
const LISTED = 20; // further rows of a finding that are named at first
const CONFIDENCE = {
  certain: "facts of the training say so, such as the parameters that an optimizer holds, or the operation that was recorded.",
  likely: "the measurements point to it: findings of several rules agree, or the finding hardly has another reason.",
  possible: "it explains the finding, and other reasons would too. What tells them apart stands under “What else it could be”.",
};

/** The blocks of a run, the worst first: each a cause with the findings that it explains, or a single finding. */
export function blocksOf(findings) {
  const causes = findings.filter((each) => each.kind === "cause");
  const byNumber = new Map(findings.filter((each) => each.kind === "finding").map((each) => [each.number, each]));
  const explained = new Set(causes.flatMap((cause) => cause.numbers));
  const blocks = findings.filter((each) => !(each.kind === "finding" && explained.has(each.number))).map((main) => {
    const reasons = main.kind === "cause" ? main.numbers.map((number) => byNumber.get(number)).filter(Boolean) : [];
    return { main, reasons, isOver: reasons.length ? reasons.every(isOver) : isOver(main) };
  });
  const rank = ({ main, isOver: over }) => ["critical", "warning", "info"].indexOf(severityOf(main)) + (over ? 0.5 : 0);
  return blocks.sort((a, b) => rank(a) - rank(b));
}

/** The names of the rows of a finding; none if it is about the whole run, whose name is empty. */
const rowsOf = (finding) => (Array.isArray(finding.rows) ? finding.rows : []).filter(Boolean);
const isOver = (finding) => finding.over !== null && finding.over !== undefined;

/** One sentence on the findings of a run, with the sign of the worst. */
export function verdictOf(blocks) {
  const worse = blocks.filter(({ main }) => severityOf(main) !== "info");
  const worst = severityOf(worstOf(blocks.map(({ main }) => main)));
  // Count the findings, each of which has a sign above the loss. A cause without findings counts as one.
  const findings = blocks.flatMap(({ main, reasons }) => (reasons.length ? reasons : [main]));
  const counts = ["critical", "warning", "info"].map((severity) => [severity, findings.filter((each) => severityOf(each) === severity).length]).filter(([, count]) => count);
  const nouns = { critical: "critical finding", warning: "warning", info: "note" };
  const said = counts.map(([severity, count]) => (severity === "critical" && counts.length > 1 ? `${count} critical` : several(count, nouns[severity]))).join(", ");
  const causes = blocks.filter(({ reasons }) => reasons.length).length;
  const found = causes && counts.length > 1 ? `${several(findings.length, "finding")} (${said})` : said;
  const text = causes ? `${several(causes, "cause")}, ${found}` : found;
  return h("p", { class: `verdict ${worse.length ? worst : "info"}` }, badgeOf(worst, worse.length ? "Not healthy" : "Notes"), `: ${text}${blocks.length > 1 ? ", the worst first" : ""}.`);
}

/**
 * The card of a block. `view` has the app, the crosshair, the range of steps { from, to } and linkTo(finding), which returns a link to a
 * row. If the cause quotes a flight record, the card holds the record too. Returns the element, with the numbers of its
 * findings in `numbers`.
 */
export function cardOf({ main, reasons }, view, record = null) {
  const severity = severityOf(main);
  const shown = main.curve ? main : reasons.find((each) => each.curve && each.name) ?? reasons.find((each) => each.curve);
  const isCause = main.kind === "cause";
  const title = h("h3", {}, badgeOf(severity), h("span", { class: "finding-name" }, main.rule ?? "Finding"), isCause ? confidenceOf(main) : null, sinceOf(main), thresholdOf(main));
  const parts = record ? recordParts(view.app, record, main) : null;
  const next = steps("What to do", main.next_steps ?? [main.next].filter(Boolean));
  // Where the record is the cause, it stands below its sentence.
  const isTold = record?.message === main.message;
  const text = h(
    "div",
    { class: "finding-text" },
    title,
    h("p", {}, ...withNames(main.message ?? main.verdict ?? "", [main, ...reasons], coded)),
    ...(isTold ? [parts, next] : [next, parts]),
    isCause ? more(reasons.map((each) => reasonOf(each, view)), "finding") : evidenceOf(main, view),
    main.alternatives?.length ? h("details", {}, h("summary", {}, "What else it could be"), list(main.alternatives)) : null,
    main.more ? h("p", { class: "soft" }, "More: ", h("code", {}, main.more)) : null,
    cardActions({ main, reasons, shown }, view),
  );
  const figure = record && hasGrowth(record) ? growthFigure(record) : shown ? curveOf(shown, view) : null;
  if (figure) title.after(figure); // the text flows around the curve
  const card = h("article", { class: `finding ${severity}`, tabindex: "-1" }, text);
  card.numbers = [main.number, ...reasons.map((each) => each.number)];
  card.record = record?.name;
  return card;
}

/** The word that says how sure a cause is, and what the word means. */
function confidenceOf({ confidence }) {
  const meaning = CONFIDENCE[confidence];
  return h("span", { class: "soft" }, ...(meaning ? disclosure(confidence, `: ${meaning}`, `${confidence}: ${meaning}`) : [confidence]));
}

/** A finding under its cause: one line, which unfolds to the evidence. */
function reasonOf(finding, view) {
  const said = finding.evidence?.[0]?.text ?? finding.message ?? "";
  const rows = Array.isArray(finding.rows) ? finding.rows : [];
  const where = rowsInShort(rows) && ` in ${rowsInShort(rows)}`;
  const title = rows.length > 1 ? namesTitle(rows) : null;
  const details = h("details", { class: "reason" });
  const threshold = thresholdOf(finding);
  // The line above says the whole sentence, unless the finding is about several rows.
  const isSaid = rows.length < 2 && finding.evidence?.length;
  const sentence = isSaid ? threshold && h("p", { class: "soft" }, "Threshold ", threshold) : h("p", {}, ...withNames(finding.message ?? "", [finding], coded), " ", threshold ?? "");
  details.append(
    h("summary", {}, signOf(severityOf(finding)), h("span", { class: "visually-hidden" }, severityOf(finding)), h("strong", {}, finding.rule), h("span", { title }, where), `, since step ${asText(finding.step)}: ${said}${isOver(finding) ? ` (over since step ${asText(finding.over)})` : ""}`),
    h("div", {}, sentence, evidenceList(finding, view), steps("What to do", finding.next_steps ?? [])),
  );
  return details;
}

/** The evidence of a finding, folded. */
function evidenceOf(finding, view) {
  const [link, listed] = [finding.name ? h("p", {}, view.linkTo(finding)) : null, evidenceList(finding, view)];
  if (!finding.evidence?.length) return h("div", {}, finding.why ? h("p", { class: "soft" }, finding.why) : null, link);
  return h("div", {}, link, h("details", {}, h("summary", {}, `Evidence: ${several(finding.evidence.length, "measurement")}`), listed));
}

function evidenceList(finding, view) {
  const lines = (finding.evidence ?? []).map(({ row, step, text }) => h("li", {}, row ? view.linkTo({ ...finding, name: row, step }) : `step ${asText(step)}`, `: ${text}`));
  const unlisted = rowsOf(finding).filter((row) => !finding.evidence?.some((each) => each.row === row));
  return h(
    "div",
    {},
    lines.length ? more(lines, "measurement", "ul") : null,
    unlisted.length ? alsoOf(unlisted) : null,
  );
}

/** A question mark that says where the threshold of a finding is from; null if nobody says it. */
function thresholdOf({ source }) {
  return source ? question("Where is the threshold from?", () => [h("p", {}, `Where the threshold is from: ${source}.`)]) : null;
}

/** The rows of a finding of which no measurement is listed. */
function alsoOf(rows) {
  return h("p", { class: "soft" }, `Also ${rows.slice(0, LISTED).join(", ")}`, ...furtherNames(rows, LISTED), ".");
}

/** Some elements in a list, of which the later ones are folded. */
function more(elements, noun, tag = "div") {
  const [first, rest] = [elements.slice(0, SHOWN), elements.slice(SHOWN)];
  if (!rest.length) return h(tag, {}, ...first);
  return h("div", {}, h(tag, {}, ...first), h("details", {}, h("summary", {}, `and ${several(rest.length, noun)} more`.replace(/(s?) more$/, "$1 more")), h(tag, {}, ...rest)));
}

function steps(title, texts) {
  return texts.length ? h("div", { class: "next" }, h("strong", {}, title), list(texts)) : null;
}

const list = (texts) => h("ul", {}, ...texts.map((text) => h("li", {}, ...coded(text))));
const asText = (step) => Number(step).toLocaleString("en-US");

function sinceOf(finding) {
  if (!Number.isFinite(Number(finding.step ?? NaN))) return null;
  return h("span", { class: "soft" }, `since step ${asText(finding.step)}${isOver(finding) ? `, over since step ${asText(finding.over)}` : ""}`);
}

/** A text in which `code` between backticks is set as code. */
function coded(text) {
  return String(text).split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}
