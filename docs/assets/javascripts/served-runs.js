/* What recorded requests say: how many were answered, how soon, and how many were refused. A request is [kind, arrival, first token or null, end], in ms. */

// Linear between neighbours, as numpy.percentile.
export function percentile(values, percent) {
  if (!values.length) return null;
  const sorted = [...values].sort((one, other) => one - other), place = ((sorted.length - 1) * percent) / 100, low = Math.floor(place);
  return sorted[low] + (place - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

export function metrics(requests, deadline) {
  const answered = requests.filter(([, , first]) => first !== null), waits = answered.map(([, arrival, first]) => first - arrival);
  const inTime = answered.filter(([, arrival, , end]) => end - arrival <= deadline).length;
  return { count: requests.length, refused: requests.length - answered.length, inTime, p50: percentile(waits, 50), p99: percentile(waits, 99) };
}

export const kindsOf = (requests) => [...new Set(requests.map(([kind]) => kind))].sort();
