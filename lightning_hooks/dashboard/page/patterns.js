// Filters rows with the patterns of rules: globs over dotted names, `re:` for regular expressions, `!` to exclude.

/**
 * A filter: { matches, error }. `matches` tells whether a name matches; null if there is no pattern or a pattern is invalid, and then
 * all rows are shown. `error` is a message about an invalid pattern, or empty.
 */
export function filterOf(text) {
  try {
    return { matches: matcher(text), error: "" };
  } catch (error) {
    return { matches: null, error: error.message };
  }
}

function matcher(text) {
  // Patterns are separated by spaces or commas, except that a regular expression may contain commas.
  const words = text.split(/\s+/).flatMap((word) => (/^!?re:/.test(word) ? [word] : word.split(","))).filter(Boolean);
  if (!words.length) return null;
  const chosen = [];
  const excluded = [];
  for (const word of words) {
    const negative = word.startsWith("!");
    const pattern = negative ? word.slice(1) : word;
    (negative ? excluded : chosen).push(pattern.startsWith("re:") ? regular(pattern.slice(3)) : glob(pattern));
  }
  return (name) => (!chosen.length || chosen.some((p) => p.test(name))) && !excluded.some((p) => p.test(name));
}

function regular(source) {
  try {
    return new RegExp(`^(?:${source})$`, "u");
  } catch (error) {
    throw new Error(`re:${source} is no regular expression: ${error.message}`);
  }
}

function glob(pattern) {
  let source = "";
  for (let i = 0; i < pattern.length; i++) {
    const c = pattern[i];
    const end = c === "[" ? pattern.indexOf("]", i + 2) : -1;
    if (c === "*") source += "[\\s\\S]*";
    else if (c === "?") source += "[\\s\\S]";
    else if (end > 0) {
      const inside = pattern.slice(i + 1, end).replace(/\\/g, "\\\\").replace(/^!/, "^");
      source += `[${inside}]`;
      i = end;
    } else source += c.replace(/[.+^${}()|[\]\\/]/g, "\\$&");
  }
  return new RegExp(`^${source}$`);
}
