/* A weight matrix as codes: the rules of minllm/weights, number for number in float32. No document is touched here.
 *
 * Rows are features out, columns features in. Each format returns { codes, back, scales, bytes }: one code per number, the numbers that
 * the codes stand for, the scales of each row, and the bytes of codes and scales together. */

const f = Math.fround;
export const NF4 = [
  -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
  -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
  0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
].map(f);

// The nearest whole number; halves go to the even one.
export function rint(x) {
  const low = Math.floor(x), rest = x - low;
  return rest < 0.5 ? low : rest > 0.5 ? low + 1 : low % 2 === 0 ? low : low + 1;
}

// The nearest float with this many bits of fraction, whose smallest exponent is `lowest`.
function nearestFloat(x, fraction, lowest) {
  if (x === 0) return x;
  const exponent = Math.max(Math.floor(Math.log2(Math.abs(x))), lowest), step = 2 ** (exponent - fraction);
  return rint(x / step) * step;
}
export const half = (x) => nearestFloat(x, 10, -14);
export const e4m3 = (x) => nearestFloat(clip(x, -448, 448), 3, -6);

const clip = (x, low, high) => Math.min(high, Math.max(low, x));
const largest = (numbers) => numbers.reduce((top, number) => Math.max(top, Math.abs(number)), 0);
const inverse = (scale) => (scale > 0 ? f(1 / scale) : 0);

// Symmetric codes from -127 to 127.
function int8(group) {
  const scale = f(largest(group) * f(1 / 127)), factor = inverse(scale);
  const codes = group.map((number) => clip(rint(f(number * factor)), -127, 127));
  return { codes, back: codes.map((code) => f(code * scale)), scale };
}

function fp8(group) {
  const scale = f(largest(group) * f(1 / 448)), factor = inverse(scale);
  const codes = group.map((number) => e4m3(f(number * factor)));
  return { codes, back: codes.map((code) => f(code * scale)), scale };
}

function int4(group) {
  const scale = half(f(largest(group) * f(1 / 7))), factor = inverse(scale);
  const codes = group.map((number) => clip(rint(f(number * factor)) + 8, 0, 15));
  return { codes, back: codes.map((code) => f((code - 8) * scale)), scale };
}

function int4Zeros(group) {
  const low = Math.min(0, ...group), high = Math.max(0, ...group);
  const scale = half(f(f(high - low) * f(1 / 15))), factor = inverse(scale), zero = clip(rint(f(-low * factor)), 0, 15);
  const codes = group.map((number) => clip(rint(f(number * factor)) + zero, 0, 15));
  return { codes, back: codes.map((code) => f((code - zero) * scale)), scale };
}

function nf4(group) {
  const scale = f(largest(group)), factor = inverse(scale), middles = NF4.slice(1).map((number, i) => f(f(NF4[i] + number) / 2));
  const codes = group.map((number) => middles.filter((middle) => middle < f(number * factor)).length);
  return { codes, back: codes.map((code) => f(NF4[code] * scale)), scale };
}

// name: { text, encode, bits per code, bytes per scale, and whether groups share scales (else whole rows do) }
export const FORMATS = {
  int8: { text: "int8, a scale per row", encode: int8, bits: 8, scaleBytes: 4, grouped: false },
  fp8: { text: "fp8 (e4m3), a scale per row", encode: fp8, bits: 8, scaleBytes: 4, grouped: false },
  int4: { text: "int4, symmetric", encode: int4, bits: 4, scaleBytes: 2, grouped: true },
  int4_zeros: { text: "int4 with zero points", encode: int4Zeros, bits: 4, scaleBytes: 3, grouped: true },
  nf4: { text: "NF4", encode: nf4, bits: 4, scaleBytes: 4, grouped: true },
};

export function encode(matrix, name, groupSize) {
  const format = FORMATS[name], columns = matrix[0].length, size = format.grouped ? groupSize : columns;
  const rows = matrix.map((row) => {
    const parts = [];
    for (let first = 0; first < columns; first += size) parts.push(format.encode(row.slice(first, first + size)));
    return parts;
  });
  return {
    codes: rows.map((parts) => parts.flatMap((part) => part.codes)),
    back: rows.map((parts) => parts.flatMap((part) => part.back)),
    scales: rows.map((parts) => parts.map((part) => part.scale)),
    bytes: (matrix.length * columns * format.bits) / 8 + matrix.length * Math.ceil(columns / size) * format.scaleBytes,
  };
}

// The length of the difference over the length of the matrix.
export function relativeError(matrix, back) {
  let wrong = 0, all = 0;
  matrix.forEach((row, r) => row.forEach((number, c) => { wrong += (number - back[r][c]) ** 2; all += number ** 2; }));
  return all === 0 ? 0 : Math.sqrt(wrong / all);
}

// Numbers like trained weights: nearly normal, the same on every visit; those of column `outlier` are `times` larger.
export function sampleMatrix(rows, columns, outlier, times) {
  let state = 12345;
  const uniform = () => { state = (Math.imul(state, 1664525) + 1013904223) >>> 0; return (state + 0.5) / 2 ** 32; };
  const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  return Array.from({ length: rows }, () => Array.from({ length: columns }, (_, c) => f(0.02 * normal() * (c === outlier ? times : 1))));
}
