/* Reads cases as JSON from standard input, plans each with the site's costs.js, and writes the plans as JSON. */
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const costs = await import(pathToFileURL(process.argv[2]));
const tables = JSON.parse(readFileSync(process.argv[3], "utf-8"));
const plans = JSON.parse(readFileSync(0, "utf-8")).map(({ values, gpu, dtype, kvDtype, wishes }) => {
  const config = costs.readConfig(values);
  const format = tables.weight_formats[dtype], kvItem = tables.kv_itemsizes[kvDtype];
  const items = { item: format.itemsize, matrixItem: format.matrix_itemsize, kvItem };
  const part = costs.shard(config, wishes.tensorParallel);
  return {
    plan: costs.makePlan(config, tables.gpus[gpu], format, kvItem, wishes),
    decodeStages: costs.decodeStages(part, wishes.batch, wishes.context, items),
    prefillStages: costs.prefillStages(part, wishes.context, items, wishes.batch),
  };
});
process.stdout.write(JSON.stringify(plans));
