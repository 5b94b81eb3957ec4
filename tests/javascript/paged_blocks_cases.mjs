/* What the site's paged-blocks.js makes of lists of calls, [what, name, ...]; after each the block tables, or "no room". */
export function answer(module, tables, cases) {
  return cases.map(({ numBlocks, blockSize, calls }) => {
    const cache = new module.PagedBlocks(numBlocks, blockSize);
    return calls.map(([what, ...given]) => {
      let told = null;
      try {
        told = cache[what](...given) ?? null;
      } catch (error) {
        told = "no room";
      }
      const states = cache.blocks.map((_, block) => cache.state(block));
      return { told, tables: Object.fromEntries([...cache.sequences].map(([name, { table }]) => [name, [...table]])), states, ...cache.usage() };
    });
  });
}
