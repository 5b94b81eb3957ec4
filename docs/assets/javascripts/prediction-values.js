// Numbers as people type them, and how far a guess is off. minllm/course/quantity.py, prediction.py and figures/scale.py have the same rules.

const PREFIXES = {
  k: 1e3, K: 1e3, M: 1e6, G: 1e9, T: 1e12,
  ki: 2 ** 10, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40,
  thousand: 1e3, million: 1e6, billion: 1e9, trillion: 1e12,
};
const QUANTITY = /^\s*([+-]?(?:\d[\d, _]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(thousand|million|billion|trillion|[kKMGT]i?(?=$|\s|B|FLOP))?\s*[^\d]*$/;

/** The number that `text` means, null if it means none. */
export function parseQuantity(text) {
  const found = QUANTITY.exec(text);
  if (!found) return null;
  const value = Number(found[1].replace(/[, _]/g, "")) * (PREFIXES[found[2]] ?? 1);
  return Math.abs(value) < 1e100 ? value : null;
}

/** Three significant digits without an exponent for ordinary sizes, as Python's ".3g" prints them. */
function threeDigits(value) {
  if (value === 0) return "0";
  const exponent = Math.floor(Math.log10(Math.abs(Number(value.toExponential(2)))));
  if (exponent >= -4 && exponent < 3) return String(Number(value.toPrecision(3)));
  const [mantissa, power] = value.toExponential(2).split("e");
  return `${Number(mantissa)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
}

/** The accuracy of a guess in words. */
export function verdict(guess, actual) {
  if (guess === null) return "not predicted";
  if (typeof guess === "string" || typeof actual === "string") return guess === actual ? "right" : "otherwise";
  if (guess === actual) return "exactly";
  if (guess <= 0 || actual <= 0) return guess > actual ? "too high" : "too low";
  const ratio = guess / actual;
  if (1 / 1.1 <= ratio && ratio <= 1.1) return "within 10 %";
  return ratio > 1 ? `${threeDigits(ratio)}x too high` : `${threeDigits(1 / ratio)}x too low`;
}

/** A number as short text: 4,096 or 0.31 or 12.5; 1.2M above a hundred thousand. */
export function short(value) {
  for (const [size, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= Math.max(size, 1e5)) return `${threeDigits(value / size)}${prefix}`;
  }
  if (value === 0 || Math.abs(value) >= 100) return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
  return threeDigits(value);
}
