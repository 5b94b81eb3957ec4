/* The steps and metrics of cases as the site's batch-scheduler.js and costs.js make them. */
import { readConfig, stepSeconds } from "../../docs/assets/javascripts/costs.js";

export function answer(module, tables, cases) {
  return cases.map(({ model, rates, requests, options }) => {
    const config = readConfig(typeof model === "string" ? tables.presets[model] : model);
    const { steps, tokens } = module.simulate(stepSeconds(config, rates), requests, options);
    return { steps, tokens, metrics: module.metrics(requests, tokens) };
  });
}
