/* What the site's speculation.js and costs.js make of cases. */
import { linearCosts, readConfig } from "../../docs/assets/javascripts/costs.js";

export function answer(module, tables, cases) {
  const of = (model, rates) => (model === null ? null : linearCosts(readConfig(tables.presets[model]), rates));
  return cases.map(({ model, draftModel, rates, acceptance, sequences, drafts, most }) => {
    const linear = of(model, rates), draft = of(draftModel, rates);
    return {
      ridge: linear.ridge,
      tokens: module.expectedTokens(acceptance, drafts),
      wasted: module.wastedShare(acceptance, drafts),
      seconds: module.verificationSeconds(linear, sequences, drafts, draft),
      speedUp: module.speedUp(linear, acceptance, sequences, drafts, draft),
      best: module.bestNumDrafts(linear, acceptance, sequences, most, draft),
    };
  });
}
