// What TensorBoard around this page offers: its colours and its charts.

/** TensorBoard's window; null in another host. */
export function tensorBoard() {
  try {
    return window.parent !== window && window.parent.document.querySelector("tb-webapp") ? window.parent : null;
  } catch {
    return null; // of another origin
  }
}

/** Be dark where TensorBoard is, elsewhere where the system is; what was drawn before is drawn again. */
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

/** A function that shows the curves of a row in Time Series; null where there are none. A part of the network may have them for its rows. */
export function timeSeriesOf(tags, tensor, name) {
  const host = tensorBoard();
  if (!host) return null;
  for (let at = name; at; at = at.slice(0, Math.max(at.lastIndexOf("."), 0))) {
    if (!tags.some((tag) => tag.startsWith(`${tensor}_`) && tag.endsWith(`/${at}`))) continue;
    return () => {
      // TensorBoard takes the filter from the query, and reads that when it is loaded.
      const url = new URL(host.location.href);
      url.searchParams.set("tagFilter", `^${escaped(tensor)}_[^/]*/${escaped(at)}$`);
      url.hash = "timeseries";
      host.location.assign(url.href);
    };
  }
  return null;
}

const escaped = (text) => text.replace(/[.+*?^$()[\]{}|\\]/g, "\\$&");
