// What the heat maps show as a picture and as a table.

import { short } from "./colors.js";
import { color, h } from "./dom.js";

/** The panels below one another with their titles, the colours and what they mean; resolves to a PNG. */
export function pictureOf(panels, title, legend, bar, scale, swatches) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(...panels.map((panel) => panel.canvas.width / ratio), 480);
  const [margin, line] = [12, 22];
  const heights = panels.map((panel) => panel.canvas.height / ratio + line);
  const height = heights.reduce((a, b) => a + b, 0) + 4 * line + 2 * margin;
  const out = h("canvas", { width: Math.ceil((width + 2 * margin) * ratio), height: Math.ceil(height * ratio) });
  const pen = out.getContext("2d");
  pen.scale(ratio, ratio);
  pen.fillStyle = color("page");
  pen.fillRect(0, 0, width + 2 * margin, height);
  pen.textBaseline = "middle";
  const write = (text, x, y, font = "12px", name = "ink") => {
    pen.fillStyle = color(name);
    pen.font = `${font} system-ui, sans-serif`;
    pen.fillText(text, x, y);
    return pen.measureText(text).width;
  };
  write(title, margin, margin + line / 2, "600 15px");
  let y = margin + line;
  panels.forEach((panel, i) => {
    write(panel.model.title, margin, y + line / 2, "600 12px");
    pen.drawImage(panel.canvas, margin, y + line, panel.canvas.width / ratio, panel.canvas.height / ratio);
    y += heights[i];
  });
  y += margin;
  write(legend, margin, y + line / 2);
  pen.drawImage(bar, margin, y + line, bar.width, 12);
  const marks = [0, 0.5, 1];
  pen.textAlign = "center";
  for (const at of marks) {
    pen.textAlign = at === 0 ? "left" : at === 1 ? "right" : "center";
    write(short(scale.at(at)), margin + at * bar.width, y + 2 * line, "11px", "soft");
  }
  pen.textAlign = "left";
  let x = margin + bar.width + 24;
  for (const [rgb, text] of swatches) {
    pen.fillStyle = `rgb(${rgb.join(", ")})`;
    pen.fillRect(x, y + line, 12, 12);
    x += 18 + write(text, x + 18, y + line + 6) + 14;
  }
  return new Promise((resolve) => out.toBlob(resolve));
}

/** The cells in sight of all panels as comma-separated values. */
export function tableOfCells(panels) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const lines = panels.flatMap((panel) => panel.visible().map(([name, ...numbers]) => [quoted(panel.model.run), quoted(name), ...numbers].join(",")));
  return ["run,name,first_step,last_step,least,greatest,nan,infinite", ...lines, ""].join("\n");
}
