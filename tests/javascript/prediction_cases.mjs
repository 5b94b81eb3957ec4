/* What prediction-values.js makes of texts and of guesses beside actual values. */
export function answer(values, tables, cases) {
  return cases.map((one) => ("text" in one ? values.parseQuantity(one.text) : [values.verdict(one.guess, one.actual), values.short(one.actual)]));
}
