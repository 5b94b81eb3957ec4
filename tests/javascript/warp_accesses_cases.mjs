/* The accesses of a warp, their sectors and turns, or the message about an index that cannot be. */
import { accessesOf } from "../../docs/assets/javascripts/warp-accesses.js";

export function answer({ sectors, turns }, tables, cases) {
  return cases.map(({ index, width, warp, k }) => {
    try {
      const accesses = accessesOf(index, width, warp, k);
      return { indices: accesses.map((access) => access.index), sectors: sectors(accesses), turns: turns(accesses) };
    } catch (error) {
      return { error: error.message };
    }
  });
}
