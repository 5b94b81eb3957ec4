/* What the kernels of steps add, and the sums by stage. */
export const answer = ({ kernelsOf, totals }, tables, cases) => cases.map(({ events, time }) => totals(kernelsOf(events), time));
