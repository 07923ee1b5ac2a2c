// Exports the heat maps as a picture and as a table.

import { nameOf } from "./controls.js";
import { color, download, h } from "./dom.js";
import { markKeys } from "./legend.js";
import { stepsText } from "./steps.js";
import { texture } from "./textures.js";

const MARGIN = 12;
const LINE = 22;
const FONT = "system-ui, sans-serif";

/** Save the panels of the state of the page as a picture. */
export async function savePicture(panels, state, legend) {
  const { rows, from, to } = panels[0].model;
  // If there are several panels, each has the name of its run above it, so leave the name out of the title.
  const title = `${state.others.length ? "" : `${nameOf(state.run)}: `}${state.tensor} ${state.stat}, ${stepsText(rows.steps.within(from, to))}`;
  download(`${state.tensor}_${state.stat}.png`, await pictureOf(panels, title, legend));
}

/** Save what is visible of the panels as a table. */
export function saveTable(panels, state) {
  download(`${state.tensor}_${state.stat}.csv`, new Blob([tableOfCells(panels)], { type: "text/csv" }));
}

/** Draw the panels below one another with their titles, and the legend (the element that drawLegend filled). Resolves to a PNG. */
function pictureOf(panels, title, legend) {
  const ratio = window.devicePixelRatio || 1;
  const [meaning, beyond] = [".legend-title", ".beyond"].map((name) => legend.querySelector(name)?.textContent ?? "");
  const levels = legend.querySelector(".level-key")?.textContent.replace(/ {2,}/, " to ");
  const explained = [meaning, beyond, levels].filter(Boolean).join("; ");
  const measure = (text, font) => {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `${font} ${FONT}`;
    return pen.measureText(text).width;
  };
  const width = Math.max(...panels.map((panel) => panel.canvas.width / ratio), 560, measure(title, "600 15px"), measure(explained, "12px"));
  const heights = panels.map((panel) => panel.canvas.height / ratio + (panel.model.title ? LINE : 0));
  const height = heights.reduce((a, b) => a + b, 0) + 4 * LINE + 3 * MARGIN;
  const out = h("canvas", { width: Math.ceil((width + 2 * MARGIN) * ratio), height: Math.ceil(height * ratio) });
  const pen = out.getContext("2d");
  pen.scale(ratio, ratio);
  pen.fillStyle = color("page");
  pen.fillRect(0, 0, width + 2 * MARGIN, height);
  pen.textBaseline = "middle";
  const write = (text, x, y, font = "12px", name = "ink") => {
    pen.fillStyle = color(name);
    pen.font = `${font} ${FONT}`;
    pen.fillText(text, x, y);
    return pen.measureText(text).width;
  };
  write(title, MARGIN, MARGIN + LINE / 2, "600 15px");
  let y = MARGIN + LINE;
  panels.forEach((panel, i) => {
    const { canvas, model } = panel;
    write(model.title, MARGIN, y + LINE / 2, "600 12px");
    pen.drawImage(canvas, MARGIN, y + (model.title ? LINE : 0), canvas.width / ratio, canvas.height / ratio);
    y += heights[i];
  });
  y += MARGIN;
  write(explained, MARGIN, y + LINE / 2);
  let x = MARGIN;
  const bar = legend.querySelector(".bar");
  if (bar) pen.drawImage(bar, x, y + LINE, bar.width, 12);
  x += bar ? bar.width + 24 : 0;
  legend.querySelectorAll(".ticks span").forEach((tick, i) => {
    pen.textAlign = ["left", "center", "right"][i];
    write(tick.textContent, MARGIN + (i / 2) * bar.width, y + 2 * LINE, "11px", "soft");
  });
  pen.textAlign = "left";
  pen.strokeStyle = color("line");
  for (const key of legend.querySelectorAll(".usual-key")) {
    pen.fillStyle = key.querySelector("i").style.backgroundColor;
    pen.fillRect(x, y + LINE, 12, 12);
    x += 18 + write(key.textContent.trim(), x + 18, y + LINE + 6) + 14;
  }
  // Without a colour bar the line of its ticks is free.
  if (!bar) [x, y] = [MARGIN, y + LINE];
  for (const key of legend.querySelectorAll(".special")) {
    pen.fillStyle = texture(pen, key.dataset.texture);
    pen.fillRect(x, y + LINE, 12, 12);
    pen.strokeRect(x, y + LINE, 12, 12);
    x += 18 + write(key.textContent.trim(), x + 18, y + LINE + 6) + 14;
  }
  for (const [sign, text] of markKeys(panels.flatMap((panel) => panel.model.marks))) {
    x += 6 + write(sign, x, y + LINE + 6, "12px", "alert");
    x += 14 + write(text, x, y + LINE + 6);
  }
  return new Promise((resolve) => out.toBlob(resolve));
}

/** The cells in sight of all panels as comma-separated values. */
function tableOfCells(panels) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const lines = panels.flatMap((panel) => panel.visible().map(([name, ...numbers]) => [quoted(panel.model.run), quoted(name), ...numbers].join(",")));
  return ["run,name,first_step,last_step,least,greatest,nan,infinite", ...lines, ""].join("\n");
}
