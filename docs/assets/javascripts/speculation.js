/* What speculation is worth, as minllm/costs/speculation.py computes it; the docstring there has the equations. No document is touched here.
 * linear: of the model, draft: of its draft model, both as linearCosts of costs.js returns them; draft is null where drafts cost nothing. */

export function expectedTokens(acceptance, numDrafts) {
  let total = 0;
  for (let i = 0; i <= numDrafts; i += 1) total += acceptance ** i;
  return total;
}

export const wastedShare = (acceptance, numDrafts) => 1 - expectedTokens(acceptance, numDrafts) / (1 + numDrafts);

export function verificationSeconds(linear, numSequences, numDrafts, draft = null) {
  const rows = numSequences * (1 + numDrafts), seconds = linear.seconds(rows, rows);
  if (draft === null || numDrafts === 0) return seconds;
  return seconds + (draft.seconds(rows, 0) + numDrafts * draft.seconds(numSequences, numSequences));
}

export function speedUp(linear, acceptance, numSequences, numDrafts, draft = null) {
  const plain = verificationSeconds(linear, numSequences, 0);
  return (expectedTokens(acceptance, numDrafts) * plain) / verificationSeconds(linear, numSequences, numDrafts, draft);
}

// From 0 to `most`, the number of drafts of the largest speed-up, the fewest among equals.
export function bestNumDrafts(linear, acceptance, numSequences, most, draft = null) {
  let best = 0, gain = speedUp(linear, acceptance, numSequences, 0, draft);
  for (let k = 1; k <= most; k += 1) {
    const found = speedUp(linear, acceptance, numSequences, k, draft);
    if (found > gain) [best, gain] = [k, found];
  }
  return best;
}
