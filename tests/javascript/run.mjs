/* node run.mjs ANSWER MODULE TABLES: cases as JSON on standard input, what ANSWER.answer(MODULE, TABLES, cases) gives on standard output. */
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [answerer, module] = await Promise.all(process.argv.slice(2, 4).map((path) => import(pathToFileURL(path))));
const tables = JSON.parse(readFileSync(process.argv[4], "utf-8"));
process.stdout.write(JSON.stringify(answerer.answer(module, tables, JSON.parse(readFileSync(0, "utf-8")))));
