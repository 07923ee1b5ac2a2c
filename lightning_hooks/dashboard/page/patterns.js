// The patterns of the rules: globs over dotted names, `re:` for regular expressions, `!` to exclude.

/** { takes, error }: a function of a name, null where there is no pattern; what is wrong with a pattern, whereupon all names are taken. */
export function filterOf(text) {
  try {
    return { takes: matcher(text), error: "" };
  } catch (error) {
    return { takes: null, error: error.message };
  }
}

function matcher(text) {
  // A regular expression may have commas in it.
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
