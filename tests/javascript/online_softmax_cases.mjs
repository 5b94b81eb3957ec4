/* Reads cases as JSON from standard input and writes the states and the plain result of the site's online-softmax.js. */
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { plainAttention, states } = await import(pathToFileURL(process.argv[2]));
const answers = JSON.parse(readFileSync(0, "utf-8")).map(({ scores, values, tile }) => ({
  states: states(scores, values, tile).map((state) => ({ ...state, m: state.m === -Infinity ? null : state.m })),
  plain: plainAttention(scores, values),
}));
process.stdout.write(JSON.stringify(answers));
