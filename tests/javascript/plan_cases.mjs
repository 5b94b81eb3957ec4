/* The plans and stages of cases as the site's costs.js makes them. */
export function answer(costs, tables, cases) {
  return cases.map(({ values, gpu, dtype, kvDtype, wishes }) => {
    const config = costs.readConfig(values);
    const format = tables.weight_formats[dtype], kvItem = costs.kvItemsize(tables.kv_formats[kvDtype], config.headDim);
    const items = { item: format.itemsize, matrixBytes: costs.matrixBytesIn(format), kvItem };
    const part = costs.shard(config, wishes.tensorParallel);
    return {
      plan: costs.makePlan(config, tables.gpus[gpu], format, kvItem, wishes),
      decodeStages: costs.decodeStages(part, wishes.batch, wishes.context, items),
      prefillStages: costs.prefillStages(part, wishes.context, items, wishes.batch),
    };
  });
}
