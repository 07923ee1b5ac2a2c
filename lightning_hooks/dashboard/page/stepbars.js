// Draws the bars of the step view: the axis, a bar for each row, marks of what it is compared with, and the names below.

import { color, penOf } from "./dom.js";
import { ending } from "./maplabels.js";
import { texture } from "./textures.js";
import { roundTicks, tickTexts } from "./ticks.js";

export const LEFT = 60; // pixels before the bars, for the axis
const RIGHT = 8; // pixels behind the bars
const TOP = 14; // pixels above the highest bar
const NAME_LINE = 14; // pixels, the height of a line of names
const LEAST_PLOT = 160; // pixels from the top of the canvas to the foot of the bars
const LONGEST = 150; // pixels of a name that is written upwards
const BAR_FONT = "11px system-ui, sans-serif";
const GROUP_WIDTHS = [48, 24, 12, 5]; // the least pixels, on average, of the groups of bars that share a name; the first that tells enough
const LARGEST_GROUP = 0.25; // the share of all bars above which a group tells too little
const LEAST_NAME = 22; // pixels of a group in which a shortened name is written
const NAME_GAP = 10; // pixels between names that are longer than their groups
const ZERO_HEIGHT = 6; // pixels of a bar whose value is exactly 0

/**
 * Draw bars on a canvas of `width` and at most `height` pixels. Returns { plot, foot }: the width of the plot, and the pixels from the
 * top of the canvas to the foot of the bars. A bar is { name, now, compared, why, ink, isApart }; its values are numbers, null if not
 * measured for the reason `why`, or undefined if there is no such row; `ink` is the name of its colour. `colors` are the colours of what
 * the bars are compared with, and `usual` is the usual range of the statistic, or null.
 */
export function drawBars(canvas, width, height, { bars, selected, scale, colors, usual }) {
  const plot = width - LEFT - RIGHT;
  const step = plot / Math.max(bars.length, 1);
  const names = namesBelow(canvas.getContext("2d"), bars, step);
  const foot = Math.max(Math.round(height - names.height), LEAST_PLOT);
  const context = penOf(canvas, width, foot + names.height);
  context.font = BAR_FONT;
  context.textBaseline = "middle";
  const y = (value) => foot - scale.fraction(value) * (foot - TOP);
  if (bars[selected]) {
    context.fillStyle = color("group");
    context.fillRect(LEFT + selected * step, 0, Math.max(step, 2), foot + names.height);
  }
  if (usual) drawUsualBand(context, usual, y, plot);
  // An axis without a number would be read as one of the marks of NaN and of infinite values.
  if (bars.some((bar) => [bar.now, ...bar.compared].some(Number.isFinite))) drawValueAxis(context, scale, y, plot);
  const zero = scale.kind === "log" ? foot : y(0);
  const patterns = {};
  const textured = (kind) => (context.fillStyle = patterns[kind] ??= texture(context, kind));
  bars.forEach((bar, i) => {
    const x = LEFT + i * step;
    const breadth = Math.max(step - (step > 4 ? 1 : 0), 0.5);
    if (bar.isApart && Number.isFinite(bar.now)) {
      textured("apart");
      context.fillRect(x, zero - ZERO_HEIGHT, breadth, ZERO_HEIGHT);
    } else if (bar.now === 0 || bar.why?.kind === "fromZero") {
      textured(bar.now === 0 ? "zero" : "fromZero");
      context.fillRect(x, zero - ZERO_HEIGHT, breadth, ZERO_HEIGHT);
    } else if (Number.isFinite(bar.now)) {
      context.fillStyle = color(i === selected ? "ink" : bar.ink);
      context.fillRect(x, Math.min(y(bar.now), zero), breadth, Math.max(Math.abs(zero - y(bar.now)), 1));
    } else {
      textured(bar.now === null ? (bar.why?.kind ?? "gap") : Number.isNaN(bar.now) ? "nan" : "infinite");
      context.fillRect(x, TOP, breadth, foot - TOP);
    }
    bar.compared.forEach((value, k) => {
      if (!Number.isFinite(value)) return;
      context.fillStyle = color("page");
      context.fillRect(x, y(value) - 2.5, Math.max(breadth, 2), 5);
      context.fillStyle = colors[k];
      context.fillRect(x, y(value) - 1.5, Math.max(breadth, 2), 3);
    });
  });
  if (usual) drawUsualLines(context, usual, y, plot);
  names.draw(context, selected, foot);
  return { plot, foot };
}

/** The usual range behind the bars. */
function drawUsualBand(context, { low, high }, y, plot) {
  context.fillStyle = color("third");
  context.globalAlpha = 0.14;
  context.fillRect(LEFT, y(high), plot, y(low) - y(high));
  context.globalAlpha = 1;
}

/** The bounds of the usual range and the typical value over the bars. */
function drawUsualLines(context, { low, high, typical }, y, plot) {
  for (const [value, dashes, thick] of [[low, [2, 3], 1], [high, [2, 3], 1], [typical, [6, 4], 1.5]]) {
    if (value === null) continue;
    context.setLineDash([]);
    const line = (ink, lineWidth) => {
      [context.strokeStyle, context.lineWidth] = [ink, lineWidth];
      context.beginPath();
      context.moveTo(LEFT, y(value));
      context.lineTo(LEFT + plot, y(value));
      context.stroke();
    };
    line(color("page"), thick + 1.5); // so that the line can be seen on bars too
    context.setLineDash(dashes);
    line(color("third"), thick);
  }
  context.setLineDash([]);
  context.lineWidth = 1;
}

function drawValueAxis(context, scale, y, plot) {
  const values = roundTicks(scale);
  const texts = tickTexts(values);
  values.forEach((value, i) => {
    context.strokeStyle = color("line");
    context.beginPath();
    context.moveTo(LEFT, y(value));
    context.lineTo(LEFT + plot, y(value));
    context.stroke();
    context.fillStyle = color("soft");
    context.fillText(ending(context, texts[i], LEFT - 6), 2, y(value));
  });
}

/**
 * The names below the bars: { height, draw(context, selected, foot) }. If there is room, each bar has its name, side by side or upwards.
 * Otherwise the modules that neighbouring bars have in common are named, as many as there is room for.
 */
function namesBelow(pen, bars, step) {
  pen.font = BAR_FONT;
  if (bars.length * step < 2 * LEAST_NAME || !bars.length) return { height: 0, draw: () => {} };
  const widest = Math.max(...[...bars].sort((a, b) => b.name.length - a.name.length).slice(0, 20).map((bar) => pen.measureText(bar.name).width));
  const ink = (context, i, selected) => (context.fillStyle = color(i === selected ? "ink" : "soft"));
  if (widest <= step - 6) {
    const draw = (context, selected, foot) => {
      context.textAlign = "center";
      bars.forEach((bar, i) => {
        ink(context, i, selected);
        context.fillText(bar.name, LEFT + (i + 0.5) * step, foot + 11);
      });
      context.textAlign = "left";
    };
    return { height: NAME_LINE + 6, draw };
  }
  if (step >= NAME_LINE - 1) {
    const room = Math.min(widest, LONGEST);
    const draw = (context, selected, foot) => {
      context.textAlign = "right";
      bars.forEach((bar, i) => {
        ink(context, i, selected);
        context.save();
        context.translate(LEFT + (i + 0.5) * step, foot + 5);
        context.rotate(-Math.PI / 2);
        context.fillText(ending(context, bar.name, room), 0, 0);
        context.restore();
      });
      context.textAlign = "left";
    };
    return { height: room + 10, draw };
  }
  const names = bars.map((bar) => bar.name);
  const groups = groupsBelow(names, step);
  const draw = (context, _, foot) => {
    context.strokeStyle = color("soft");
    context.fillStyle = color("soft");
    let free = LEFT; // where the next name may begin
    for (const { name, first, last } of groups) {
      const [x, end] = [LEFT + first * step, LEFT + (last + 1) * step];
      context.beginPath();
      context.moveTo(x + 1, foot + 3);
      context.lineTo(x + 1, foot + 6);
      context.lineTo(end - 1, foot + 6);
      context.lineTo(end - 1, foot + 3);
      context.stroke();
      if (x + 2 < free) continue;
      // A name may reach below the next groups if its own is narrow. Their names are left out then.
      const room = end - x >= LEAST_NAME ? end - x - 4 : Math.min(LONGEST, LEFT + bars.length * step - x - 2);
      if (room < LEAST_NAME - 4) continue;
      const text = ending(context, name, room);
      context.fillText(text, x + 2, foot + 15);
      if (end - x < LEAST_NAME) free = x + 2 + context.measureText(text).width + NAME_GAP;
    }
  };
  return { height: NAME_LINE + 10, draw };
}

/** The groups of names below bars of so many pixels: as wide as possible, while no group holds too many of all names. */
export function groupsBelow(names, step) {
  const tries = GROUP_WIDTHS.map((width) => groupsOf(names, Math.ceil(width / step)));
  return tries.find((groups) => groups.every(({ first, last }) => last + 1 - first <= LARGEST_GROUP * names.length)) ?? tries.at(-1);
}

/**
 * Neighbouring names grouped by their first words: [{ name, first, last }]. It takes as many words as possible while a group has at
 * least `least` names on average.
 */
export function groupsOf(names, least) {
  const words = names.map((name) => name.split("."));
  const deepest = Math.max(...words.map((each) => each.length));
  let found = groupsAt(words, 1);
  for (let depth = 2; depth <= deepest; depth++) {
    const groups = groupsAt(words, depth);
    if (names.length / groups.length < least) break;
    found = groups;
  }
  return found;
}

function groupsAt(words, depth) {
  const groups = [];
  words.forEach((each, i) => {
    const name = each.slice(0, depth).join(".");
    if (groups.at(-1)?.name === name) groups.at(-1).last = i;
    else groups.push({ name, first: i, last: i });
  });
  return groups;
}
