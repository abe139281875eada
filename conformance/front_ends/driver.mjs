// Drives a server by the clients of AG-UI and of Vercel's AI SDK: `node driver.mjs ADDRESS FOLDER CLIENT`.
// FOLDER has the packages. Every event passes the client's own checks; a case that fails raises.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [address, folder, client] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(createRequire(`${folder}/package.json`).resolve(name)));
const until = async (holds) => {
  while (!holds()) await new Promise((done) => setTimeout(done, 5));
};
/** A `fetch` whose first response ends after some bytes, as if the connection were lost. */
const losing = (bytes) => {
  let lost = false;
  return async (...request) => {
    const response = await fetch(...request);
    if (lost || !response.body) return response;
    lost = true;
    const reader = response.body.getReader();
    let left = bytes;
    const body = new ReadableStream({
      async pull(controller) {
        const { value, done } = await reader.read();
        if (done || left <= 0) {
          await reader.cancel();
          return controller.error(new TypeError("network error"));
        }
        controller.enqueue(value.slice(0, left));
        left -= value.length;
      },
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
};

// A client may leave the promise of a stream that breaks off without a handler.
process.on("unhandledRejection", (error) => {
  if (error.message !== "network error") throw error;
});

const ANSWER = "The butler did it, with a knife.";
/** What a page shows at the end, by the words that the person says: each token once, in order. */
const TALK = {
  speak: [["text", ANSWER]],
  look: [["text", "I look there first."], ["call", "find"], ["text", ANSWER]],
  think: [["reasoning", "Who has a knife?"], ["text", ANSWER]],
};

/** What the page declares; the server allows the names that begin with `get_`. */
const tools = ["get_place", "set_place"].map((name) => ({ name, description: "The user's place.", parameters: { type: "object", properties: {} } }));

// -- AG-UI -----------------------------------------------------------------------------------------------------------

async function agUI() {
  const { HttpAgent } = await load("@ag-ui/client");
  const start = (text, more = {}) =>
    new HttpAgent({ url: `${address}/ag-ui`, threadId: crypto.randomUUID(), initialMessages: [{ id: "u1", role: "user", content: text }], ...more });
  const said = (agent) => agent.messages.filter((m) => m.role === "assistant" && m.content && !m.subagentRunId).map((m) => m.content);
  const results = (agent) => agent.messages.filter((m) => m.role === "tool").map((m) => m.content);
  const decide = (agent, payload) =>
    agent.runAgent({ resume: agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload })) });
  const again = (agent, messages) => new HttpAgent({ url: agent.url, threadId: agent.threadId, initialMessages: structuredClone(messages) });

  return {
    async "an approval in the middle"() {
      const agent = start("book");
      await agent.runAgent({});
      assert.equal(agent.pendingInterrupts[0].reason, "tool_call");
      const { result } = await decide(agent, { approved: true });
      assert.deepEqual(results(agent), ["Hotel Rome, 90 euros a night", "booked Hotel Rome, nights: 2"]);
      assert.deepEqual(said(agent), ["I look for a hotel first.", result.answer, "[5]"]);
      assert.deepEqual(result.stars, [5]);
      const kinds = agent.messages.map((m) => (m.toolCalls ? "call" : m.role));
      assert.deepEqual(kinds.slice(0, 4), ["user", "assistant", "call", "tool"]);
      assert.ok(!kinds.includes("reasoning"));
    },
    async "changed arguments"() {
      const agent = start("book");
      await agent.runAgent({});
      await decide(agent, { approved: true, editedArgs: { hotel: "Savoy", nights: 1 } });
      assert.equal(results(agent)[1], "booked Savoy, nights: 1");
    },
    async "a denial, and another turn"() {
      const agent = start("book");
      await agent.runAgent({});
      await decide(agent, { approved: false, reason: "Too dear." });
      assert.equal(results(agent)[1], "Too dear.");
      agent.addMessage({ id: "u2", role: "user", content: "fail" });
      await agent.runAgent({});
      assert.equal(said(agent).at(-2), "It failed.");
      assert.match(results(agent).at(-1), /ValueError/);
    },
    async "an agent inside asks"() {
      const agent = start("scout");
      await agent.runAgent({});
      const asked = [];
      while (agent.pendingInterrupts.length) {
        asked.push(...agent.pendingInterrupts.map(({ subagentRunId }) => Boolean(subagentRunId)));
        await decide(agent, { approved: true });
      }
      assert.deepEqual(asked.sort(), [false, true]);
      assert.equal(results(agent).length, 3);
      assert.ok(agent.messages.some((m) => m.subagentRunId));
    },
    async "an answer that could not be used"() {
      const agent = start("wrong");
      await agent.runAgent({});
      assert.deepEqual(said(agent), ["whole", "[1,2]"]);
    },
    async "a question of the model"() {
      const agent = start("ask");
      await agent.runAgent({});
      assert.equal(agent.pendingInterrupts[0].message, "Which city?");
      await decide(agent, { answer: "Rome" });
      assert.equal(said(agent)[0], "You said Rome");
    },
    async "an answer in text, with a call behind it, and after reasoning"() {
      for (const [words, shown] of Object.entries(TALK)) {
        const agent = start(words, { url: `${address}/talk/ag-ui` });
        let tokens = "";
        const take = ({ event }) => void (tokens += event.delta);
        await agent.runAgent({}, { onTextMessageContentEvent: take, onReasoningMessageContentEvent: take });
        const page = agent.messages.filter(({ role }) => role !== "user" && role !== "tool").map((m) =>
          m.toolCalls ? ["call", m.toolCalls[0].function.name] : [m.role === "reasoning" ? "reasoning" : "text", m.content],
        );
        assert.deepEqual(page, shown);
        assert.equal(tokens, shown.filter(([kind]) => kind !== "call").map(([, text]) => text).join(""));
      }
    },
    async "a run that fails"() {
      const agent = start("break");
      let message;
      await agent.runAgent({}, { onRunErrorEvent: ({ event }) => void (message = event.message) }).catch(() => {});
      assert.equal(message, "The run failed: BadRequestError.");
    },
    async "a tool of the page, across a reload and a restart of the server"() {
      const agent = start("place");
      await agent.runAgent({ tools });
      const call = agent.messages.at(-1).toolCalls[0];
      assert.equal(call.function.name, "get_place");
      await fetch(`${address}/restart`, { method: "POST" });
      const page = again(agent, agent.messages);
      page.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: call.id, content: "Rome" });
      const { result } = await page.runAgent({ tools });
      assert.equal(result.answer, "In Rome");
      assert.deepEqual(said(page)[0], "In Rome");
    },
    async "a tool of the page that fails, and one that is not allowed"() {
      const agent = start("place");
      await agent.runAgent({ tools });
      agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: agent.messages.at(-1).toolCalls[0].id, content: "", error: "No signal." });
      const { result } = await agent.runAgent({ tools });
      assert.match(result.answer, /The page says: No signal./);
      const other = start("place");
      assert.equal((await other.runAgent({ tools: [{ ...tools[0], name: "place" }] })).result.answer, "The page may not do this.");
    },
    async "a page that is loaded again while the run waits"() {
      const agent = start("book");
      await agent.runAgent({});
      const page = again(agent, agent.messages.slice(0, 1));
      await page.runAgent({});
      assert.deepEqual(page.messages, agent.messages);
      assert.deepEqual(page.pendingInterrupts, agent.pendingInterrupts);
      await decide(page, { approved: true });
      assert.equal(results(page).length, 2);
      await assert.rejects(decide(agent, { approved: false }), /409|is not waiting for/);
    },
    async "a connection that is lost anywhere"() {
      for (let bytes = 100; bytes < 30_000; bytes += 2_917) {
        const agent = start("long", { fetch: losing(bytes) });
        await agent.runAgent({}).catch(() => {});
        const page = again(agent, agent.messages);
        await page.runAgent({});
        assert.deepEqual(said(page).map((text) => text.length), [2_289, 3]);
      }
    },
  };
}

// -- Vercel's AI SDK -------------------------------------------------------------------------------------------------

async function aiSDK(name) {
  const { AbstractChat, DefaultChatTransport } = await load(name);
  class State {
    status = "ready";
    constructor(messages) {
      this.messages = messages;
    }
    pushMessage = (message) => void (this.messages = [...this.messages, message]);
    popMessage = () => void (this.messages = this.messages.slice(0, -1));
    replaceMessage = (index, message) => void (this.messages = this.messages.with(index, structuredClone(message)));
    snapshot = (value) => structuredClone(value);
  }
  class Chat extends AbstractChat {
    constructor({ id = crypto.randomUUID(), messages = [], ...transport } = {}) {
      const sendAutomaticallyWhen = ({ messages }) => {
        const parts = messages.at(-1).parts;
        return parts.some((part) => part.state === "approval-responded") && !parts.some((part) => part.state === "approval-requested");
      };
      const state = new State(messages);
      super({ id, state, transport: new DefaultChatTransport({ api: `${address}/api/chat`, ...transport }), sendAutomaticallyWhen });
    }
    parts = (kind) => this.lastMessage.parts.filter(({ type }) => type === kind || type.startsWith(`${kind}-`));
    asked = () => this.lastMessage.parts.filter(({ state }) => state === "approval-requested");
    said = () => this.parts("text").filter((part) => !part.providerMetadata?.ferrule?.void).map(({ text }) => text);
    async decide(approved, reason) {
      const before = this.asked().map(({ approval }) => approval.id);
      for (const id of before) await this.addToolApprovalResponse({ id, approved, reason });
      await until(() => ["ready", "error"].includes(this.status) && !this.lastMessage.parts.some(({ state }) => state === "approval-responded"));
    }
  }

  return {
    async "an approval in the middle"() {
      const chat = new Chat();
      await chat.sendMessage({ text: "book" });
      assert.deepEqual(chat.asked()[0].input, { hotel: "Hotel Rome", nights: 2 });
      await chat.decide(true);
      assert.equal(chat.messages.length, 2);
      assert.equal(chat.parts("tool")[1].output, "booked Hotel Rome, nights: 2");
      const { answer } = chat.parts("data")[0].data;
      assert.match(answer, /booked Hotel Rome/);
      assert.deepEqual(chat.said(), ["I look for a hotel first.", answer, "[5]"]);
      assert.equal(chat.parts("text")[0].providerMetadata.ferrule.preamble, true);
      assert.equal(chat.parts("reasoning").length, 0);
    },
    async "a denial, and another turn"() {
      const chat = new Chat();
      await chat.sendMessage({ text: "book" });
      await chat.decide(false, "Too dear.");
      assert.equal(chat.parts("tool")[1].state, "output-denied");
      assert.match(chat.said()[1], /Too dear/);
      await chat.sendMessage({ text: "fail" });
      assert.equal(chat.said()[0], "It failed.");
      assert.match(chat.parts("tool")[0].errorText, /ValueError/);
      assert.deepEqual(chat.parts("data-chart")[0].data, { points: [1, 2] });
    },
    async "an agent inside asks"() {
      const chat = new Chat();
      await chat.sendMessage({ text: "scout" });
      let asked = 0;
      while (chat.asked().length) {
        asked += chat.asked().length;
        await chat.decide(true);
      }
      assert.equal(asked, 2);
      assert.deepEqual(chat.parts("tool").map(({ state }) => state), Array(3).fill("output-available"));
    },
    async "an answer that could not be used"() {
      const chat = new Chat();
      await chat.sendMessage({ text: "wrong" });
      assert.deepEqual(chat.said(), ["whole", "[1,2]"]);
    },
    async "a question of the model"() {
      const chat = new Chat();
      await chat.sendMessage({ text: "ask" });
      const [{ data }] = chat.parts("data-question");
      await chat.addToolOutput({ tool: "user_clarification", toolCallId: data.toolCallId, output: "Rome" });
      await chat.sendMessage();
      assert.equal(chat.said()[0], "You said Rome");
    },
    async "an answer in text, with a call behind it, and after reasoning"() {
      for (const [words, shown] of Object.entries(TALK)) {
        const chat = new Chat({ api: `${address}/talk/api/chat` });
        await chat.sendMessage({ text: words });
        const page = chat.lastMessage.parts.flatMap(({ type, text }) => {
          if (type === "text" || type === "reasoning") return [[type, text]];
          return type.startsWith("tool-") ? [["call", type.slice("tool-".length)]] : [];
        });
        assert.deepEqual(page, shown);
      }
    },
    async "a run that fails"() {
      const chat = new Chat();
      await chat.sendMessage({ text: "break" });
      assert.equal(chat.error.message, "The run failed: BadRequestError.");
    },
    async "a tool of the page, across a reload and a restart of the server"() {
      const chat = new Chat({ body: { tools } });
      await chat.sendMessage({ text: "place" });
      const [call] = chat.parts("tool");
      assert.deepEqual([call.type, call.state], ["tool-get_place", "input-available"]);
      await fetch(`${address}/restart`, { method: "POST" });
      const page = new Chat({ id: chat.id, messages: structuredClone(chat.messages), body: { tools } });
      await page.addToolOutput({ tool: "get_place", toolCallId: call.toolCallId, output: { city: "Rome" } });
      await page.sendMessage();
      assert.equal(page.said()[0], 'In {"city":"Rome"}');
      assert.equal(page.messages.length, 2);
    },
    async "a tool of the page that fails, and one that is not allowed"() {
      const chat = new Chat({ body: { tools } });
      await chat.sendMessage({ text: "place" });
      const { toolCallId } = chat.parts("tool")[0];
      await chat.addToolOutput({ state: "output-error", tool: "get_place", toolCallId, errorText: "No signal." });
      await chat.sendMessage();
      assert.match(chat.said()[0], /The page says: No signal./);
      const other = new Chat({ body: { tools: [{ ...tools[0], name: "place" }] } });
      await other.sendMessage({ text: "place" });
      assert.equal(other.said()[0], "The page may not do this.");
    },
    async "a page that is loaded again while the run waits"() {
      const chat = new Chat();
      await chat.sendMessage({ text: "book" });
      const page = new Chat({ id: chat.id, messages: structuredClone(chat.messages.slice(0, 1)) });
      await page.resumeStream();
      assert.deepEqual(page.messages, chat.messages);
      await page.decide(true);
      assert.match(page.said()[1], /booked Hotel Rome/);
      await chat.addToolApprovalResponse({ id: chat.asked()[0].approval.id, approved: false });
      await until(() => chat.status === "error");
      assert.match(chat.error.message, /is not waiting for/);
      const late = new Chat({ id: chat.id, messages: structuredClone(chat.messages.slice(0, 1)) });
      await late.resumeStream();
      assert.deepEqual(late.said(), page.said());
      assert.equal(late.parts("tool").length, 2);
    },
    async "a connection that is lost anywhere"() {
      for (let bytes = 100; bytes < 30_000; bytes += 2_917) {
        const chat = new Chat({ fetch: losing(bytes) });
        await chat.sendMessage({ text: "long" });
        assert.equal(chat.status, "error");
        const page = name === "ai" ? chat : new Chat({ id: chat.id, messages: chat.messages.slice(0, 1) }); // 6 builds on what is there
        await page.resumeStream();
        assert.deepEqual(page.said().map((text) => text.length), [2_289, 3]);
        assert.equal(page.messages.length, 2);
      }
    },
    async "nothing to come back to"() {
      const chat = new Chat();
      await chat.resumeStream();
      assert.deepEqual([chat.status, chat.messages.length], ["ready", 0]);
    },
  };
}

const cases = client === "ag-ui" ? await agUI() : await aiSDK(client);
let failed = 0;
for (const [title, run] of Object.entries(cases)) {
  try {
    await run();
    console.log(`ok      ${client}: ${title}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${client}: ${title}\n${error.stack}`);
  }
}
process.exit(failed ? 1 : 0);
