/* The choice of splits, shares and schedule of cases as the site's split-kv.js makes them. */
export function answer(module, tables, cases) {
  return cases.map(({ sizes, splits, draw }) => ({
    own: module.chooseSplits(sizes), tiles: module.headTiles(sizes.group), step: module.keysPerStep(sizes.headDim, sizes.group),
    shares: module.shares(sizes.context, splits, module.keysPerStep(sizes.headDim, sizes.group)),
    blocks: draw ? module.schedule(sizes, splits) : null,
  }));
}
