// What can be done with the card of a finding: open the map, compare with a healthy run, copy the card, accept the finding.

import { copyButton } from "./clipboard.js";
import { nameOf } from "./controls.js";
import { h } from "./dom.js";
import { severityOf } from "./severity.js";

const IN_A_LINE = 2; // patterns that stand in one line

/**
 * The buttons below a card. `shown` is the finding whose curve the card shows. `view` has the app, openMap(finding, others) and
 * `healthy`: { name } of the last healthy run, { reason } why none of the other runs serves, or null if there is no other run.
 */
export function cardActions({ main, reasons, shown }, view) {
  const { app, healthy } = view;
  // A finding on the loss names no row, but may say at which row it was seen.
  const places = [shown, main, ...reasons].filter(Boolean).map((each) => (each.name ? each : { ...each, ...each.seen }));
  const placed = places.find((each) => each.name && view.hasMap(each));
  const map = placed ? h("button", { onclick: () => view.openMap(placed) }, "Map") : null;
  const against = healthy?.name === undefined ? "" : `Compare with ${nameOf(healthy.name)}, the last run here without a finding above a note`;
  const compare = healthy && h("button", { disabled: !against, title: against || healthy.reason, onclick: () => (placed ? view.openMap(placed, healthy.name) : app.state.set({ other: healthy.name })) }, "Compare with the last healthy run");
  const reason = against || !healthy ? null : h("span", { class: "soft" }, healthy.reason);
  const copy = copyButton("Copy as Markdown", () => markdownOf({ main, reasons }, app.state.run), "Copy this card as Markdown");
  return h("div", { class: "card-actions" }, map, compare, reason, copy, ...acceptance([main, ...reasons]));
}

/** A button that shows the option which accepts findings, in Python and in YAML; nothing if no pattern accepts them. */
function acceptance(findings) {
  const patterns = [...new Set(findings.flatMap((each) => (Array.isArray(each.accept) ? each.accept : [])))];
  if (!patterns.length) return [];
  // A JSON string is a string in Python and in YAML too. More than a few have a line each.
  const texts = patterns.map((each) => JSON.stringify(each));
  const isLong = texts.length > IN_A_LINE;
  const listed = isLong ? `[\n${texts.map((each) => `    ${each},\n`).join("")}]` : `[${texts.join(", ")}]`;
  const inYaml = isLong ? texts.map((each) => `\n  - ${each}`).join("") : ` ${listed}`;
  const options = [["Python", `HealthMonitor(accept=${listed})`], ["YAML, in the init_args of HealthMonitor", `accept:${inYaml}`]];
  const panel = h(
    "div",
    { class: "acceptance", hidden: true },
    h("p", {}, "If this is known and no problem, accept it. What the patterns do not match is still told."),
    ...options.map(([language, text]) => h("div", {}, h("span", { class: "soft" }, language), " ", copyButton("Copy", () => text, `Copy the option in ${language}`), h("code", { class: "command" }, text))),
  );
  const toggle = () => {
    panel.hidden = !panel.hidden;
    button.setAttribute("aria-expanded", String(!panel.hidden));
  };
  const button = h("button", { "aria-expanded": "false", onclick: toggle }, "This is fine");
  return [button, panel];
}

/** A card as Markdown. */
export function markdownOf({ main, reasons }, run) {
  const since = (finding) => (Number.isFinite(Number(finding.step ?? NaN)) ? `since step ${finding.step}` : "");
  const severity = severityOf(main);
  const bullets = (title, texts) => (texts?.length ? [`${title}:\n\n${texts.map((text) => `- ${text}`).join("\n")}`] : []);
  const reason = (each) => `**${each.rule}**${since(each) ? `, ${since(each)}` : ""}: ${each.message ?? each.evidence?.[0]?.text ?? ""}`;
  const measured = ({ row, step, text }) => `${row ? `\`${row}\`, ` : ""}step ${step}: ${text}`;
  return [
    `**${severity[0].toUpperCase()}${severity.slice(1)}: ${main.rule ?? "Finding"}**${main.confidence ? ` (${main.confidence})` : ""}, ${[since(main), `run \`${nameOf(run)}\``].filter(Boolean).join(", ")}`,
    main.message ?? main.verdict ?? "",
    ...bullets("What to do", main.next_steps ?? [main.next].filter(Boolean)),
    ...bullets("Findings", reasons.map(reason)),
    ...bullets("Evidence", main.kind === "cause" ? [] : (main.evidence ?? []).map(measured)),
    ...bullets("What else it could be", main.alternatives),
  ].filter(Boolean).join("\n\n") + "\n";
}
