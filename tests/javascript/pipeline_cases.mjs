/* What warps and stages of the recorded pipelines do after each event. */
export const answer = ({ statesOf }, tables, cases) => cases.map((run) => statesOf(run));
