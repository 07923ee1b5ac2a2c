// The labels beside a heat map: the names of rows at the right, and before them the open groups that begin at the row.

import { clamp, color } from "./dom.js";

export const AXIS = 22; // pixels above the cells
const [LARGEST_FONT, SMALLEST_FONT] = [12, 9];
const LEAST_DISTANCE = 11; // pixels between the middles of two labels
const GROUP_GAP = 10; // pixels between the groups and the name of a row
const LABEL_MARGIN = 12; // pixels before the cells, in which the levels of rows are drawn

/**
 * The label of line `r`: the indent in pixels, the `groups` that begin there ({ node, text, detail }), and the `text` and the `detail`
 * of its node. If `all`, groups that began at an earlier line are repeated.
 */
function labelOf({ rows, shown, flat }, r, all) {
  const { nodes } = rows;
  const node = shown[r];
  const { name, label, leaves, depth, detail } = nodes[node];
  if (flat) return { indent: 4, groups: [], text: name, detail: "", isGroup: false };
  const isGroup = rows.isGroup(node);
  const groups = rows.groupsAt(r, shown, all).map((each) => ({ node: each, text: `▾ ${nodes[each].label}`, detail: nodes[each].detail }));
  const indent = 4 + Math.min(groups.length ? nodes[groups[0].node].depth : depth, 8) * 10;
  return { indent, groups, text: isGroup ? `▸ ${label} (${leaves})` : label, detail, isGroup };
}

/** The texts of a label with their widths, without the details that do not fit: { parts: [{ node, text, detail }], end }. */
function fitted(context, { indent, groups, text, detail, isGroup }, room) {
  const width = (...texts) => context.measureText(texts.filter(Boolean).join(" ")).width;
  const chain = (withDetails) => groups.reduce((sum, each) => sum + width(each.text, withDetails && each.detail) + GROUP_GAP / 2, groups.length ? GROUP_GAP / 2 : 0);
  for (const [ofGroups, ofRow] of [[true, true], [true, false], [false, false]]) {
    const end = { text, detail: ofRow ? detail : "", isGroup };
    const fits = indent + chain(ofGroups) + width(end.text, end.detail) <= room;
    if (fits || !(ofGroups || ofRow)) return { parts: groups.map((each) => ({ ...each, detail: ofGroups ? each.detail : "" })), end, fits };
  }
}

/** The width of the widest label in pixels. */
export function widestLabel(model) {
  const { shown } = model;
  if (model.rows.widest?.shown !== shown) {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `${LARGEST_FONT}px system-ui, sans-serif`;
    // Measure only the labels with the most characters, since there may be thousands of labels.
    const whole = ({ groups, text, detail }) => [...groups.flatMap((each) => [each.text, each.detail]), text, detail].filter(Boolean).join(" ");
    const labels = shown.map((_, r) => labelOf(model, r, r === 0)).map((label) => ({ text: whole(label), indent: label.indent + GROUP_GAP * (1 + label.groups.length / 2) }));
    labels.sort((a, b) => b.text.length + b.indent / 6 - a.text.length - a.indent / 6);
    const widest = Math.max(0, ...labels.slice(0, 20).map(({ text, indent }) => indent + pen.measureText(text).width));
    model.rows.widest = { shown, width: Math.ceil(widest) + LABEL_MARGIN + 4 };
  }
  return model.rows.widest.width;
}

/**
 * Draw the labels of a HeatMap; `at` is its layout. Where rows are thinner than text, labels that would overlap are left out, first those
 * at which no group begins. The boxes of the labels of groups are kept for the pointer.
 */
export function drawLabels(context, map, at) {
  const { shown } = map.model;
  context.font = `${Math.min(Math.max(at.row - 3, SMALLEST_FONT), LARGEST_FONT)}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.save();
  context.beginPath();
  context.rect(0, AXIS - 3, at.gutter - 4, at.height + 6);
  context.clip();
  map.boxes = [];
  const lines = Array.from({ length: Math.max(at.last - at.first, 0) }, (_, i) => {
    const r = at.first + i;
    const hidden = at.top - r * at.row; // pixels of the first line that are scrolled out of sight
    const y = clamp((r + 0.5) * at.row - at.top + Math.max(hidden, 0) / 2, 4, at.height - 4);
    return { label: labelOf(map.model, r, i === 0), y: AXIS + y, height: at.row, node: shown[r] };
  });
  for (const line of withRoom(lines, at)) drawLabel(context, map, at, line);
  context.restore();
}

/** The lines whose labels do not overlap: first those at which a group begins, the outer groups first, then the others from the top. */
function withRoom(lines, at) {
  if (at.row >= LEAST_DISTANCE) return lines;
  const taken = new Map(); // from a bucket of LEAST_DISTANCE pixels to the middles of the labels in it
  const isFree = (y) => [-1, 0, 1].every((by) => (taken.get(Math.floor(y / LEAST_DISTANCE) + by) ?? []).every((other) => Math.abs(other - y) >= LEAST_DISTANCE));
  const take = (line) => {
    if (!isFree(line.y)) return false;
    const bucket = Math.floor(line.y / LEAST_DISTANCE);
    taken.set(bucket, [...(taken.get(bucket) ?? []), line.y]);
    return true;
  };
  const starts = lines.filter((line) => line.label.groups.length || line.label.isGroup).sort((a, b) => a.label.indent - b.label.indent);
  return [...starts, ...lines.filter((line) => !starts.includes(line))].filter(take);
}

function drawLabel(context, map, at, { label, y, height }) {
  const { parts, end, fits } = fitted(context, label, at.gutter - LABEL_MARGIN);
  const [ink, soft] = [color("ink"), color("soft")];
  const write = (text, x, name) => {
    context.fillStyle = name;
    context.fillText(text, x, y);
    return context.measureText(text).width;
  };
  const space = context.measureText(" ").width;
  const whole = (text, detail) => [text, detail].filter(Boolean).join(" ");
  const endWidth = Math.min(context.measureText(whole(end.text, end.detail)).width, at.gutter - LABEL_MARGIN - label.indent);
  const room = at.gutter - LABEL_MARGIN - endWidth - GROUP_GAP; // where the groups end at the latest
  let x = label.indent;
  if (fits) {
    for (const { node, text, detail } of parts) {
      const start = x;
      x += write(text, x, ink);
      if (detail) x += space + write(detail, x + space, soft);
      map.boxes.push({ node, x: start, width: x - start + GROUP_GAP / 2, y, height });
      x += GROUP_GAP / 2;
    }
  } else if (parts.length) {
    const text = ending(context, parts.map((each) => each.text).join(" "), room - x);
    map.boxes.push({ node: parts.at(-1).node, x, width: write(text, x, ink), y, height });
  }
  // The name of a folded group stands where its rows would begin, the name of a row at the right, beside its cells.
  const start = end.isGroup ? Math.max(x, label.indent) : at.gutter - LABEL_MARGIN - endWidth;
  const text = ending(context, end.text, at.gutter - LABEL_MARGIN - start);
  const written = write(text, start, end.isGroup ? ink : soft);
  if (end.detail) write(end.detail, start + written + space, soft);
}

/** A text shortened to a width. The beginning is cut off, since names differ at their end. */
export function ending(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let [least, most] = [0, text.length];
  while (least < most) {
    const middle = Math.floor((least + most) / 2);
    if (context.measureText(`…${text.slice(middle)}`).width <= width) most = middle;
    else least = middle + 1;
  }
  return `…${text.slice(least)}`;
}
