// A small curve of the loss in a line of text, without axes: whether it falls, and where it is not finite.

import { short } from "./colors.js";

const [SPARK_WIDE, SPARK_TALL, SPARK_EDGE] = [124, 28, 2]; // pixels
const SPARK_LOG = 1000; // the curve is logarithmic if its values, all positive, differ by more than this factor
const SVG = "http://www.w3.org/2000/svg";

/** The curve as an element; null if there is no value. `tag` is the name of the loss. */
export function sparkline({ tag, steps, values }) {
  const finite = values.filter(Number.isFinite);
  if (!values.length) return null;
  const isLog = finite.length > 1 && Math.min(...finite) > 0 && Math.max(...finite) / Math.min(...finite) > SPARK_LOG;
  const height = (value) => (isLog ? Math.log(value) : value);
  const [low, high] = [Math.min(...finite.map(height)), Math.max(...finite.map(height))];
  const [from, to] = [steps[0], steps.at(-1)];
  const x = (step) => SPARK_EDGE + ((step - from) / (to - from || 1)) * (SPARK_WIDE - 2 * SPARK_EDGE);
  const y = (value) => SPARK_EDGE + (1 - (height(value) - low) / (high - low || 1)) * (SPARK_TALL - 2 * SPARK_EDGE);
  let [line, isDrawing] = ["", false];
  const broken = [];
  values.forEach((value, i) => {
    const isPoint = Number.isFinite(value);
    if (isPoint) line += `${isDrawing ? "L" : "M"}${x(steps[i]).toFixed(1)} ${y(value).toFixed(1)}`;
    else broken.push(`M${x(steps[i]).toFixed(1)} ${SPARK_TALL - 5}v5`);
    isDrawing = isPoint;
  });
  const svg = svgOf("svg", { viewBox: `0 0 ${SPARK_WIDE} ${SPARK_TALL}`, width: SPARK_WIDE, height: SPARK_TALL, class: "sparkline", role: "img" });
  svg.append(svgOf("title", {}, lossText(tag, values, finite)), svgOf("path", { d: line, class: "spark" }));
  if (broken.length) svg.append(svgOf("path", { d: broken.join(""), class: "spark-broken" }));
  return svg;
}

function lossText(tag, values, finite) {
  const lost = values.length - finite.length;
  const course = finite.length ? `from ${short(finite[0])} to ${short(finite.at(-1))}, lowest ${short(Math.min(...finite))}` : "never finite";
  return `${tag}: ${course}${lost && finite.length ? `, not finite at ${lost} of ${values.length} points` : ""}`;
}

function svgOf(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(text);
  return element;
}
