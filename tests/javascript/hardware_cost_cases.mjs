/* The rows of the page about hardware and cost, and what it says of prices. */
import { kvItemsize, readConfig } from "../../docs/assets/javascripts/costs.js";

export function answer({ compareGpus, readPrices }, tables, cases) {
  return cases.map(({ model, dtype, kvDtype, context, batch, prices }) => {
    try {
      const config = readConfig(tables.presets[model]), found = readPrices(prices, Object.values(tables.gpus).map((gpu) => gpu.short_name));
      const formats = { weights: tables.weight_formats[dtype], kvItem: kvItemsize(tables.kv_formats[kvDtype], config.headDim) };
      const wishes = { context, batch, tensorParallel: 1, memoryShare: 0.9 };
      return compareGpus(tables.gpus, config, formats, wishes, found).map((row) => [row.name, row.batch, row.plan && { step: row.plan.decode.floorMs, bound: row.plan.decode.bound, cost: row.plan.decode.cost }]);
    } catch (error) {
      return error.message;
    }
  });
}
