/* Codes, numbers and bytes of cases as the site's weight-codes.js makes them. */
export function answer(module, tables, cases) {
  return cases.map(({ matrix, format, group }) => {
    const coded = module.encode(matrix, format, group);
    return { ...coded, error: module.relativeError(matrix, coded.back) };
  });
}
