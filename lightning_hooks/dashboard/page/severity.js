// The signs of severities: each has a shape, a word and a colour, so that they are told apart without colours too.

import { h } from "./dom.js";

const SHAPES = {
  critical: ["M5 1h6l4 4v6l-4 4H5l-4-4V5z", "M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6"], // an octagon with a cross
  warning: ["M8 1.2l7.2 13.6H.8z", "M8 5.8v4.4M8 12.2v.6"], // a triangle with an exclamation mark
  info: ["M8 1a7 7 0 1 1 0 14A7 7 0 0 1 8 1z", "M8 7.2v4.4M8 4.4v.6"], // a circle with an i
  fine: ["M8 1a7 7 0 1 1 0 14A7 7 0 0 1 8 1z", "M4.6 8.2l2.4 2.4 4.4-4.8"], // a circle with a tick
  record: ["M8 1a7 7 0 1 1 0 14A7 7 0 0 1 8 1z", "M8 5.4a2.6 2.6 0 1 1 0 5.2a2.6 2.6 0 0 1 0-5.2z"], // a circle with a ring, for a flight record
  unknown: ["M8 1l7 7-7 7-7-7z", "M5.4 8h.4M7.8 8h.4M10.2 8h.4"], // a diamond with dots
};
/** The severities, the worst last. */
export const RANKS = ["fine", "unknown", "info", "warning", "critical"];
const SYNONYMS = { error: "critical", fatal: "critical" };

/** The severity of a finding, one of the names of shapes. Other packages may write other words into a file of findings. */
export function severityOf(finding) {
  const text = String(finding.severity ?? "").toLowerCase();
  const severity = SYNONYMS[text] ?? text;
  return RANKS.includes(severity) ? severity : "info";
}

/** The worst of some findings; null if there are none. */
export function worstOf(findings) {
  const rank = (finding) => RANKS.indexOf(severityOf(finding));
  return findings.reduce((worst, each) => (worst === null || rank(each) > rank(worst) ? each : worst), null);
}

/** The sign of a severity, which screen readers skip: a word stands beside it. */
export function signOf(severity) {
  const svg = (tag, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const [outline, inside] = SHAPES[severity];
  const lines = svg("path", { d: inside, class: "sign-inside" });
  return svg("svg", { viewBox: "0 0 16 16", class: `sign ${severity}`, "aria-hidden": "true" }, svg("path", { d: outline }), lines);
}

/** A sign with its word. */
export function badgeOf(severity, word = severity) {
  return h("span", { class: `badge ${severity}` }, signOf(severity), word);
}
