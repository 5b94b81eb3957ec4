/* The fields of a page in its address, after "?", so that a link shows what its sender saw. Fields at their first values are left out. */

// What an address asks of fields: { name: value } that they can take, and sentences about the others. Fields are as form-fields.js makes them.
export function readAddress(query, fields) {
  const wanted = {}, refused = [];
  for (const [name, value] of new URLSearchParams(query)) {
    if (!(name in fields)) refused.push(`The address names a field “${name}”, which this page does not have.`);
    else if (!fields[name].takes(value)) refused.push(`The address has ${name} = “${value.slice(0, 40)}”, which is not valid: the page shows ${fields[name].raw() || "none"}.`);
    else wanted[name] = value;
  }
  return { wanted, refused };
}

export function writeAddress(fields, first) {
  const query = new URLSearchParams();
  for (const [name, field] of Object.entries(fields)) if (field.raw() !== first[name]) query.set(name, field.raw());
  return String(query);
}

// read(): sets the fields from the page's address, and returns what it could not set; write(): the fields into the address.
export function keepInAddress(fields) {
  const first = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.raw()]));
  return {
    read() {
      const { wanted, refused } = readAddress(location.search, fields);
      for (const [name, value] of Object.entries(wanted)) fields[name].set(value);
      return refused.join(" ");
    },
    write() {
      const query = writeAddress(fields, first);
      history.replaceState(history.state, "", `${location.pathname}${query ? `?${query}` : ""}${location.hash}`);
    },
  };
}
