/* Whether the filter of the page of results shows rows. */
export const answer = ({ matches }, tables, cases) => cases.map(({ row, words }) => matches(row, words));
