// Fuzzy matching of names, as in the quick-open of an editor: the letters of the query occur in the name, in this order.

const BOUNDARY = 8; // score of a letter that is matched at the beginning of a word
const ADJACENT = 9; // score of a letter that is matched right behind the letter before
const PER_CHARACTER = 0.05; // taken off the score for each character of the name, so that shorter names come first

/**
 * The match of a query and a text: { score, at }, where `at` holds the indices of the matched characters, ascending; null if the text
 * does not match. The query consists of words, each of which must match. Upper and lower case are the same.
 */
export function fuzzy(query, text) {
  const letters = lowerCase(text);
  let score = -PER_CHARACTER * letters.length;
  const at = new Set();
  for (const word of query.split(/\s+/).filter(Boolean)) {
    const match = bestMatch(lowerCase(word), letters);
    if (match === null) return null;
    score += match.score;
    for (const i of match.at) at.add(i);
  }
  return { score, at: [...at].sort((a, b) => a - b) };
}

/** The items whose text matches, best first and otherwise in their order: [{ item, score, at }]. */
export function ranked(query, items, textOf) {
  const found = items.map((item) => ({ item, ...(fuzzy(query, textOf(item)) ?? { score: null }) })).filter(({ score }) => score !== null);
  return query.trim() ? found.sort((a, b) => b.score - a.score) : found;
}

/** The lower-case characters of a text, one for each UTF-16 unit, so that indices stay those of the text. */
function lowerCase(text) {
  return text.split("").map((c) => (c.toLowerCase().length === 1 ? c.toLowerCase() : c));
}

const isLetter = (c) => /[\p{L}\p{M}]/u.test(c);
const isDigit = (c) => c >= "0" && c <= "9";

/** Whether a word begins at an index: at the start, behind a separator, and where letters and digits meet. */
function begins(letters, i) {
  if (i === 0) return true;
  const [before, here] = [letters[i - 1], letters[i]];
  if (isDigit(here)) return !isDigit(before);
  return isLetter(here) && !isLetter(before);
}

/** The best way to find the letters of a word in a text, in their order; null if there is none. */
function bestMatch(word, letters) {
  let from = 0;
  for (const c of word) {
    from = letters.indexOf(c, from) + 1;
    if (!from) return null;
  }
  // scores[i][j] is the best score of the first i + 1 letters of the word if the last of them is at j, and cameFrom[i][j] the index of
  // the letter before.
  const [scores, cameFrom] = [[], []];
  for (let i = 0; i < word.length; i++) {
    const [line, source] = [new Float64Array(letters.length).fill(-Infinity), new Int32Array(letters.length).fill(-1)];
    let [earlier, earlierAt] = [-Infinity, -1]; // the best of the letter before, at an index less than j - 1
    for (let j = i; j < letters.length; j++) {
      if (i && j > 1 && scores[i - 1][j - 2] > earlier) [earlier, earlierAt] = [scores[i - 1][j - 2], j - 2];
      if (letters[j] !== word[i]) continue;
      const bonus = begins(letters, j) ? BOUNDARY : 0;
      const adjacent = i ? scores[i - 1][j - 1] + ADJACENT : 0;
      if (!i || adjacent >= earlier) [line[j], source[j]] = [adjacent + bonus, j - 1];
      else [line[j], source[j]] = [earlier + bonus, earlierAt];
    }
    scores.push(line);
    cameFrom.push(source);
  }
  const last = scores.at(-1);
  let j = last.indexOf(Math.max(...last));
  const at = [];
  const score = last[j];
  for (let i = word.length - 1; i >= 0; i--) {
    at.push(j);
    j = cameFrom[i][j];
  }
  return { score, at };
}
