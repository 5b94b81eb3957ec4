/* FlashAttention's inner loop for one query, as the list of states that it passes through (Dao et al. 2022, algorithm 1, lines 9 to 13;
 * the online softmax of Milakov and Gimelshein 2018, algorithm 3). No document is touched here. */

// scores: of all keys; values: one row a key. Each state: what was just done, the tile, m, l, output not yet divided, and the tile's weights.
export function states(scores, values, tileSize) {
  const width = values[0].length;
  let m = -Infinity, l = 0, output = Array(width).fill(0);
  const passed = [{ kind: "start", tile: null, m, l, output, weights: [], factor: null }];
  for (let first = 0; first < scores.length; first += tileSize) {
    const tile = [first, Math.min(first + tileSize, scores.length)];
    const inTile = scores.slice(...tile), largest = Math.max(m, ...inTile);
    passed.push({ kind: "scores", tile, m, l, output, weights: [], factor: null });
    const factor = Math.exp(m - largest);
    const before = m;
    m = largest;
    l *= factor;
    output = output.map((number) => number * factor);
    passed.push({ kind: "rescale", tile, m, l, output, weights: [], factor, before });
    const weights = inTile.map((score) => Math.exp(score - m));
    l += weights.reduce((total, weight) => total + weight, 0);
    output = output.map((number, d) => number + weights.reduce((total, weight, i) => total + weight * values[first + i][d], 0));
    passed.push({ kind: "add", tile, m, l, output, weights, factor });
  }
  passed.push({ kind: "divide", tile: null, m, l, output: output.map((number) => number / l), weights: [], factor: null });
  return passed;
}

// The same by the definition, all scores at once.
export function plainAttention(scores, values) {
  const largest = Math.max(...scores), weights = scores.map((score) => Math.exp(score - largest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return values[0].map((_, d) => weights.reduce((sum, weight, i) => sum + (weight / total) * values[i][d], 0));
}
