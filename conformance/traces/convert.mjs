// Attributes of spans (JSON on stdin, a list) by @arizeai/openinference-genai, whose cache folder is the argument: JSON on stdout.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(`${process.argv[2]}/`);
const { convertGenAISpanAttributesToOpenInferenceSpanAttributes: convert } = require("@arizeai/openinference-genai");
const spans = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(spans.map((attributes) => convert(attributes))));
