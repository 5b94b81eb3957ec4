/* The load of experts, as minllm/costs/experts.py computes it; the docstring there has the equations. No document is touched here. */

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

// The probability that a token takes each expert, the most popular first; skew 0: a router without preference.
export function choiceProbabilities(experts, chosen, skew = 0) {
  const popularity = Array.from({ length: experts }, (_, e) => (e + 1) ** -skew);
  let certain = 0, rest = sum(popularity);
  while (certain < chosen && (chosen - certain) * popularity[certain] >= rest) {
    certain += 1;
    rest = sum(popularity.slice(certain));
  }
  return popularity.map((one, e) => (e < certain ? 1 : ((chosen - certain) * one) / rest));
}

export const expertsRead = (probabilities, tokens) => sum(probabilities.map((p) => 1 - (1 - p) ** tokens));

// The mean number of tokens of the expert that has most.
export function fullestLoad(probabilities, tokens) {
  if (probabilities[0] === 1) return tokens;
  const logs = [0];
  for (let m = 1; m <= tokens; m += 1) logs.push(logs[m - 1] + Math.log(m));
  const allAtMost = Array(tokens + 1).fill(1), counts = new Map();
  for (const p of probabilities) counts.set(p, (counts.get(p) ?? 0) + 1);
  for (const [p, count] of counts) {
    let atMost = 0;
    for (let m = 0; m <= tokens; m += 1) {
      atMost += Math.exp(logs[tokens] - logs[m] - logs[tokens - m] + m * Math.log(p) + (tokens - m) * Math.log1p(-p));
      allAtMost[m] *= Math.min(1, atMost) ** count;
    }
  }
  return sum(allAtMost.map((share) => 1 - share));
}
