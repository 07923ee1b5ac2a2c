// Uses the TensorBoard in which the page is embedded: follows its theme, and opens its charts.

/** The window of TensorBoard; null if the page is not embedded in TensorBoard. */
export function tensorBoard() {
  try {
    return window.parent !== window && window.parent.document.querySelector("tb-webapp") ? window.parent : null;
  } catch {
    return null; // the parent window is of another origin, and cannot be TensorBoard's
  }
}

/** Use the dark theme if TensorBoard does, or outside TensorBoard if the system does. `redraw` is called after each change. */
export function followTheme(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const host = tensorBoard();
  if (!host) return;
  const { body } = host.document;
  const follow = () => {
    document.documentElement.style.colorScheme = body.classList.contains("dark-mode") ? "dark" : "light";
    redraw();
  };
  new host.MutationObserver(follow).observe(body, { attributes: true, attributeFilter: ["class"] });
  follow();
}

/**
 * How the tags of a tensor may begin. The name of a tensor contains the prefix of its monitor without `watch/`, which tags have (see
 * rules/prefix.py).
 */
export function beginningsOf(tensor) {
  return [`watch/${tensor}_`, `${tensor}_`];
}

/**
 * A function that opens the curves of a row in the Time Series tab; null if no scalar was logged for the row. If scalars are merged
 * along the module tree, the curves of the nearest module above the row are opened.
 */
export function timeSeriesOf(tags, tensor, name) {
  const host = tensorBoard();
  if (!host) return null;
  for (let at = name; at; at = at.slice(0, Math.max(at.lastIndexOf("."), 0))) {
    const beginning = beginningsOf(tensor).find((each) => tags.some((tag) => tag.startsWith(each) && tag.endsWith(`/${at}`)));
    if (!beginning) continue;
    return () => {
      // TensorBoard reads the filter from the query of its address, and only when it is loaded.
      const url = new URL(host.location.href);
      url.searchParams.set("tagFilter", `^${escaped(beginning)}[^/]*/${escaped(at)}$`);
      url.hash = "timeseries";
      host.location.assign(url.href);
    };
  }
  return null;
}

const escaped = (text) => text.replace(/[.+*?^$()[\]{}|\\]/g, "\\$&");
