/* The metrics of recorded requests, as the site's served-runs.js makes them. */
export const answer = (module, tables, cases) => cases.map(({ requests, deadline }) => module.metrics(requests, deadline));
