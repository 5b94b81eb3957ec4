/* The states and the plain result of cases as the site's online-softmax.js makes them; JSON has no -Infinity, so null stands for it. */
export function answer(softmax, tables, cases) {
  return cases.map(({ scores, values, tile }) => ({
    states: softmax.states(scores, values, tile).map((state) => ({ ...state, m: state.m === -Infinity ? null : state.m })),
    plain: softmax.plainAttention(scores, values),
  }));
}
