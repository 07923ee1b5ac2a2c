// Colour maps, and the scales that map numbers to colours. The colours of a map can be told apart with every kind of colour blindness.

// 33 evenly spaced colours of each map, from matplotlib: viridis and cividis (CC0), PuOr (ColorBrewer, Apache 2.0).
const ANCHORS = {
  viridis:
    "440154470d6048186a482374472d7b4537814240863e49893b528b375b8d33638d2f6b8e2c728e297a8e26828e23898e21918c1f988b1fa088" +
    "22a78528ae8032b67a3fbc734ec36b5ec96270cf5784d44b98d83eaddc30c2df23d8e219ece51bfde725",
  cividis:
    "00224e00285b002e6a0533711a386f273e6e32436d3b496c434e6c4b546c535a6d5a5f6e61656f686a716f70737676767d7c788482798c8878" +
    "938e789b9476a39a74aba072b4a76fbcae6cc4b468cdbb63d5c25edec958e7d150f0d846f9e03afee838",
  // Below, inside and above a range, see usualmap.js: orange, bluish green and vermilion, from light to dark, so that they differ in
  // grey and with every kind of colour vision.
  usual:
    "ffe44dfcdd45fad63ef8cf36f5c82ef2c226f0bb1feeb417ebad0fe8a608e69f007a9e3b0f9d760f9d760f9d760f9d760f9d760f9d760f9d76" +
    "0f9d760f9d766c7440c84a0abf4409b53d08ac3707a330069a2a05902404871d037e17027410016b0a00",
  diverging:
    "2d004b390c5e4518715225845f3a916d529c7b6aa88a7eb39990bfa9a1cbb7b1d5c3c0ddcfcfe5dadcece4e5f0eeeef3f7f7f6f9efe1fce8cd" +
    "fee1b9fed59ffdc885fdbc6bf7ac52ee9b39e58a20d97b12cb6e0dbd6109ae55069e4c078d43077f3b08",
};

// The choices of colours: "reference" has the colours of "usual", for ratios to the runs to compare with.
export const MAPS = [...Object.keys(ANCHORS), "reference"];
export const SCALES = ["auto", "linear", "log", "symlog"];

// The colours of NaN, of infinite values and of exact zeros, which no map contains.
export const NAN = [255, 0, 220];
export const INFINITE = [0, 214, 255];
export const ZERO = [178, 184, 198];
// The colour of rows that stand apart, see levels.js.
export const APART = [206, 200, 186];
// The colour of updates of a parameter that was 0, which have no ratio.
export const FROM_ZERO = [224, 228, 236];

const ENOUGH_FOR_LOG = 20; // the ratio of greatest to least positive value above which a scale is logarithmic
const FEW_VALUES = 200; // with fewer values, none counts as an outlier
const OUTSIDE = 0.02; // the share of values at each end that may be outliers
const USED = 0.6; // if the other values would use a smaller share of the colours, the bounds of the scale exclude the outliers

const tables = new Map();

/** The 256 colours of a map as an array of red, green, blue, red, green, blue, … */
export function tableOf(name) {
  if (!tables.has(name)) {
    const anchors = ANCHORS[name].match(/../g).map((hex) => parseInt(hex, 16));
    const table = new Uint8Array(256 * 3);
    for (let i = 0; i < 256; i++) {
      const at = (i / 255) * 32;
      const low = Math.min(Math.floor(at), 31);
      for (let c = 0; c < 3; c++) {
        const [a, b] = [anchors[3 * low + c], anchors[3 * low + 3 + c]];
        table[3 * i + c] = Math.round(a + (b - a) * (at - low));
      }
    }
    tables.set(name, table);
  }
  return tables.get(name);
}

/**
 * The scale for numbers between two bounds. The kind "auto" is replaced by one that suits the numbers. If `signed`, zero is in the
 * middle of the scale, and "auto" never becomes "log".
 */
export function makeScale(kind, low, high, leastPositive, signed) {
  if (!(low <= high)) [low, high] = [0, 1];
  if (kind === "auto") {
    if (!signed && low >= 0 && leastPositive > 0 && high / leastPositive > ENOUGH_FOR_LOG) kind = "log";
    else if ((signed || (low < 0 && high > 0)) && Math.max(-low, high) / leastPositive > 1000) kind = "symlog";
    else kind = "linear";
  }
  if (kind === "log" && !(high > 0)) kind = "linear"; // no value is positive
  if (kind === "log") low = low > 0 ? low : leastPositive;
  if (signed && kind !== "log") {
    high = Math.max(Math.abs(low), Math.abs(high)) || 1;
    low = -high; // zero gets the middle colour
  }
  const threshold = Math.max(high, -low) * 1e-4 || 1;
  const forward = {
    linear: (x) => x,
    log: (x) => (x > 0 ? Math.log10(x) : -Infinity),
    symlog: (x) => Math.sign(x) * Math.log10(1 + Math.abs(x) / threshold),
  }[kind];
  const backward = {
    linear: (x) => x,
    log: (x) => 10 ** x,
    symlog: (x) => Math.sign(x) * threshold * (10 ** Math.abs(x) - 1),
  }[kind];
  const [a, b] = [forward(low), forward(high)];
  const span = b > a ? b - a : 1;
  return {
    kind,
    low,
    high,
    /** The place of a number on the colour bar, from 0 to 1. */
    fraction: (x) => Math.min(Math.max((forward(x) - a) / span, 0), 1),
    /** The index of the colour of a number, from 0 to 255. */
    index: (x) => {
      const at = ((forward(x) - a) / span) * 255;
      return at <= 0 ? 0 : at >= 255 ? 255 : Math.round(at);
    },
    /** The number at a fraction, from 0 to 1, of the colour bar. */
    at: (fraction) => backward(a + span * fraction),
  };
}

/**
 * The scale for summaries of segments (see segments.js). If a few outliers would leave most of the colours unused, the bounds exclude
 * them, and `beyond` holds the least and the greatest value. `fixed` holds the two bounds of the user, each null if it is not fixed.
 * Zero has the middle colour if the map shows a difference, or if the diverging map shows negative values. `hasZero` of the scale says
 * that cells of exact zeros have the colour of their own, as in all maps but those of differences.
 */
export function scaleOf(summaries, kind, fixed, map, isDifference) {
  return Object.assign(scaleFor(summaries, kind, fixed, map, isDifference), { hasZero: !isDifference });
}

function scaleFor(summaries, kind, fixed, map, isDifference) {
  let [low, high, leastPositive, count] = [Infinity, -Infinity, Infinity, 0];
  for (const each of summaries) {
    if (each.low < low) low = each.low;
    if (each.high > high) high = each.high;
    if (each.leastPositive < leastPositive) leastPositive = each.leastPositive;
    count += each.sample.length;
  }
  const isSigned = (isDifference || (map === "diverging" && low < 0)) && fixed[0] === null && fixed[1] === null;
  if (isDifference && !isSigned && kind === "auto") kind = "linear";
  const usual = sampleOf(summaries, count);
  const sizes = usual.map(Math.abs).filter((x) => x > 0).sort();
  // With values of both signs some are always near zero. Choose the kind of scale by the median magnitude instead of the least one.
  const floor = (positive) => (kind === "auto" && (low < 0 || isSigned) ? (sizes[sizes.length >> 1] ?? positive) : positive);
  const made = (a, b, positive) => makeScale(kind, fixed[0] ?? a, fixed[1] ?? b, floor(positive), isSigned);
  const whole = made(low, high, leastPositive);
  if (fixed[0] !== null && fixed[1] !== null) return whole;
  if (usual.length < FEW_VALUES) return whole;
  const outside = Math.floor(usual.length * OUTSIDE);
  const [a, b] = [usual[outside], usual[usual.length - 1 - outside]];
  const used = isSigned ? 2 * (whole.index(Math.max(-a, b)) - whole.index(0)) : whole.index(b) - whole.index(a);
  if (!(a < b) || used > USED * 255) return whole;
  const scale = made(a, b, sizes[Math.floor(sizes.length * OUTSIDE)] ?? leastPositive);
  return Object.assign(scale, { beyond: [low < scale.low ? low : null, high > scale.high ? high : null] });
}

/** At most 8,192 evenly chosen values of the samples, sorted. */
function sampleOf(summaries, count) {
  const stride = Math.max(Math.ceil(count / 8192), 1);
  const values = [];
  let i = 0;
  for (const { sample } of summaries) for (const value of sample) if (i++ % stride === 0) values.push(value);
  return Float64Array.from(values).sort();
}

/** A short form of a number with about four digits. */
export function short(x) {
  if (x === null || x === undefined) return "–";
  if (typeof x === "string") return x;
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "Inf" : "−Inf";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e7) return String(x).replace("-", "−");
  const text = size >= 1e5 || size < 1e-3 ? x.toExponential(2) : String(Number(x.toPrecision(4)));
  return text.replace("-", "−").replace("e−", "e-").replace("e+", "e");
}
