// The clients of TypeScript by remote control: `node driver.mjs 1|2 FOLDER TARGET`, with the SDK of that version in FOLDER.
// Requests are lines of JSON on stdin, and each is answered with one line on stdout, as in drivers.py.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [version, folder, given] = process.argv.slice(2);
const target = JSON.parse(given);
const require = createRequire(pathToFileURL(`${folder}/package.json`));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const CANCEL_AFTER_MS = 500;
const CHANGES_WITHIN_MS = 10_000;

const accept = async () => ({ action: "accept", content: { approve: true } });
const capabilities = target.elicit ? { elicitation: { form: {} } } : {};
let noteChange;
const changed = new Promise((resolve) => { noteChange = resolve; });
const about = { name: "driver", version: "1" };

async function connect1() {
  const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
  const types = await load("@modelcontextprotocol/sdk/types.js");
  const { StdioClientTransport } = await load("@modelcontextprotocol/sdk/client/stdio.js");
  const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const client = new Client(about, { capabilities });
  if (target.elicit) client.setRequestHandler(types.ElicitRequestSchema, accept);
  client.setNotificationHandler(types.ToolListChangedNotificationSchema, noteChange);
  await client.connect(transport(StdioClientTransport, StreamableHTTPClientTransport));
  return { client, call: (params, options) => client.callTool(params, undefined, options) };
}

async function connect2() {
  const { Client, StreamableHTTPClientTransport } = await load("@modelcontextprotocol/client");
  const { StdioClientTransport } = await load("@modelcontextprotocol/client/stdio");
  const listChanged = { tools: { onChanged: noteChange } };
  const client = new Client(about, { capabilities, listChanged, versionNegotiation: { mode: "auto" } });
  if (target.elicit) client.setRequestHandler("elicitation/create", accept);
  await client.connect(transport(StdioClientTransport, StreamableHTTPClientTransport));
  return { client, call: (params, options) => client.callTool(params, options) };
}

function transport(Stdio, Http) {
  if (target.url) return new Http(new URL(target.url));
  return new Stdio({ command: target.command[0], args: target.command.slice(1), stderr: "inherit" });
}

function plain(result) {
  const of = (kind) => result.content.filter((each) => each.type === kind);
  return {
    text: of("text").map((each) => each.text).join("\n"),
    images: of("image").map((each) => each.data),
    structured: result.structuredContent ?? null,
    error: Boolean(result.isError),
  };
}

async function answer(request) {
  const params = { name: request.name, arguments: request.args };
  if (request.do === "list") {
    const { tools } = await client.listTools();
    return { tools: Object.fromEntries(tools.map((each) => [each.name, each.inputSchema])) };
  }
  if (request.do === "call") {
    const progress = [];
    const result = await call(params, { onprogress: (each) => progress.push(each.progress) });
    return { ...plain(result), progress };
  }
  if (request.do === "cancel") {
    const giving = new AbortController();
    setTimeout(() => giving.abort("given up"), CANCEL_AFTER_MS);
    await call(params, { signal: giving.signal }).catch(() => null);
    return {};
  }
  const late = new Promise((_, reject) => setTimeout(() => reject(new Error("no change within 10 s")), CHANGES_WITHIN_MS));
  await Promise.race([changed, late]);
  return {};
}

const { client, call } = await (version === "1" ? connect1() : connect2());
for await (const line of createInterface({ input: process.stdin })) {
  const found = await answer(JSON.parse(line)).catch((error) => ({ raised: String(error) }));
  process.stdout.write(`${JSON.stringify(found)}\n`);
}
await client.close();
process.exit(0);
