/* What address-state.js reads from addresses and writes into them, with fields like those of form-fields.js but without a document. */
function fake({ raw, allowed }) {
  return { now: raw, raw() { return this.now; }, set(value) { this.now = value; }, takes: (value) => allowed.includes(value) };
}

export function answer({ readAddress, writeAddress }, tables, cases) {
  return cases.map(({ fields, query, set }) => {
    const made = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, fake(field)]));
    const first = Object.fromEntries(Object.entries(made).map(([name, field]) => [name, field.raw()]));
    const { wanted, refused } = readAddress(query, made);
    for (const [name, value] of Object.entries(set)) made[name].set(value);
    const written = writeAddress(made, first);
    return { wanted, refused, written, readAgain: readAddress(written, made).wanted };
  });
}
