/* The load of experts as the site's expert-load.js computes it. */
export function answer(module, tables, cases) {
  return cases.map(({ experts, chosen, skew, tokens }) => {
    const probabilities = module.choiceProbabilities(experts, chosen, skew);
    return { probabilities, read: module.expertsRead(probabilities, tokens), fullest: module.fullestLoad(probabilities, tokens) };
  });
}
