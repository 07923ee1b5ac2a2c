// Textures: patterns on cells and in the legend, so that what is no number is told apart without colours too.

import { APART, FROM_ZERO, INFINITE, NAN, ZERO } from "./colors.js";
import { color, h } from "./dom.js";

const SIZE = 8; // pixels of the tile that is repeated
const INK = "rgb(0 0 0 / 62%)";

// Each texture: its ground, null for the colour of the page, and how its lines are drawn.
const TEXTURES = {
  nan: { ground: NAN, ink: INK, lines: [[0, 0, 8, 8], [0, 8, 8, 0]] }, // crosses
  infinite: { ground: INFINITE, ink: INK, lines: [[2, 0, 2, 8], [6, 0, 6, 8]] }, // upright lines
  zero: { ground: ZERO, ink: INK, dots: [[2, 2], [6, 6]] },
  apart: { ground: APART, ink: "rgb(0 0 0 / 38%)", lines: [[0, 4, 5, 4]] }, // dashes
  fromZero: { ground: FROM_ZERO, ink: "rgb(0 0 0 / 45%)", lines: [[1, 4, 6, 4], [3.5, 1.5, 3.5, 6.5]] }, // plus signs
  // Not measured, for each kind of reason (see gaps.js).
  gap: { ground: null, ink: "hatch", lines: [[-2, 2, 2, -2], [0, 8, 8, 0], [6, 10, 10, 6]] }, // slanted lines
  frozen: { ground: null, ink: "hatch", lines: [[0, 2, 8, 2], [0, 6, 8, 6]] }, // level lines
  forgotten: { ground: null, ink: "alert", lines: [[2, 0, 2, 4], [6, 4, 6, 8]] }, // upright strokes
  uncalled: { ground: null, ink: "hatch", lines: [[-2, 6, 2, 10], [0, 0, 8, 8], [6, -2, 10, 2]] }, // lines that slant the other way
  schedule: { ground: null, ink: "hatch", dots: [[4, 4]] },
  failed: { ground: null, ink: "alert", lines: [[0, 2, 4, 6], [4, 6, 8, 2]] }, // zigzag lines
};

/** A texture as a pattern of a canvas. Without its ground only the lines are drawn, for cells that have their colour already. */
export function texture(context, name, hasGround = true) {
  const { ground, ink, lines = [], dots = [] } = TEXTURES[name];
  const ratio = window.devicePixelRatio || 1;
  const tile = document.createElement("canvas");
  tile.width = tile.height = SIZE * ratio;
  const pen = tile.getContext("2d");
  pen.scale(ratio, ratio);
  if (hasGround) {
    pen.fillStyle = ground ? `rgb(${ground.join(", ")})` : color("page");
    pen.fillRect(0, 0, SIZE, SIZE);
  }
  pen.strokeStyle = pen.fillStyle = ink.startsWith("rgb") ? ink : color(ink);
  pen.beginPath();
  for (const [x, y, toX, toY] of lines) {
    pen.moveTo(x, y);
    pen.lineTo(toX, toY);
  }
  pen.stroke();
  for (const [x, y] of dots) pen.fillRect(x - 1, y - 1, 2, 2);
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

/** A square of a texture for a legend. */
export function swatch(name) {
  const canvas = h("canvas", { width: "32", height: "32", class: "swatch", "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  pen.scale(2, 2);
  pen.fillStyle = texture(pen, name);
  pen.fillRect(0, 0, 16, 16);
  return canvas;
}
