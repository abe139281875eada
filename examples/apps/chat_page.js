// A conversation over AG-UI, and one over the message stream of Vercel's AI SDK, without a package. chat.html shows them.
// Pages with packages use `HttpAgent` of @ag-ui/client, and `useChat` of @ai-sdk/react.

/** The JSON messages of a response, as they come. */
async function* messages(response) {
  if (!response.ok) throw new Error((await response.json()).error);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (text + value).split("\n\n");
    text = frames.pop();
    for (const frame of frames) if (frame !== "data: [DONE]") yield JSON.parse(frame.slice("data: ".length));
  }
}

class Conversation {
  /** `lines` are what the page shows: {id, kind: "user" | "text" | "thought" | "call", text, result?}. */
  constructor(id, show) {
    Object.assign(this, { id, show, lines: [], questions: [] });
  }
  line(id, kind, text = "") {
    const found = this.lines.find((line) => line.id === id) ?? this.lines[this.lines.push({ id, kind, text: "" }) - 1];
    found.text += text;
    this.show(this);
    return found;
  }
  fetch(address, body) {
    return fetch(address, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  }
}

export class AGUIConversation extends Conversation {
  constructor(address, id, show) {
    super(id, show);
    Object.assign(this, { address, messages: [] });
  }
  send(text) {
    this.messages.push({ id: crypto.randomUUID(), role: "user", content: text });
    this.line(this.messages.at(-1).id, "user", text);
    return this.run();
  }
  decide(question, approved, editedArgs) {
    return this.run([{ interruptId: question.id, status: "resolved", payload: { approved, editedArgs } }]);
  }
  comeBack(messages) {
    this.messages = messages;
    for (const { id, role, content } of messages) if (content && role !== "tool") this.line(id, role === "user" ? "user" : "text", content);
    return this.run();
  }
  async run(resume) {
    this.questions = [];
    const input = { threadId: this.id, runId: crypto.randomUUID(), messages: this.messages, resume };
    for await (const event of messages(await this.fetch(this.address, input))) this.take(event);
    this.show(this);
  }
  take(event) {
    const { type, messageId, toolCallId, delta } = event;
    if (type === "TEXT_MESSAGE_START") this.messages.push({ id: messageId, role: "assistant", content: "" });
    if (type === "TEXT_MESSAGE_CONTENT") {
      this.messages.find((message) => message.id === messageId).content += delta;
      this.line(messageId, "text", delta);
    }
    if (type === "REASONING_MESSAGE_CONTENT") this.line(messageId, "thought", delta);
    if (type === "TOOL_CALL_START") {
      const toolCall = { id: toolCallId, type: "function", function: { name: event.toolCallName, arguments: "" } };
      this.messages.push({ id: event.parentMessageId, role: "assistant", toolCalls: [toolCall] });
      this.line(toolCallId, "call", event.toolCallName + " ");
    }
    if (type === "TOOL_CALL_ARGS") {
      this.messages.find((message) => message.id === toolCallId).toolCalls[0].function.arguments += delta;
      this.line(toolCallId, "call", delta);
    }
    if (type === "TOOL_CALL_RESULT") {
      this.messages.push({ id: messageId, role: "tool", toolCallId, content: event.content });
      this.line(toolCallId, "call").result = event.content;
    }
    if (type === "MESSAGES_SNAPSHOT") {
      const kept = new Map(event.messages.map((message) => [message.id, message]));
      this.messages = event.messages;
      this.lines = this.lines.filter((line) => line.kind === "thought" || kept.has(line.id));
      for (const line of this.lines) if (line.kind === "text") line.text = kept.get(line.id).content;
    }
    if (type === "RUN_FINISHED") {
      const asked = event.outcome?.interrupts ?? [];
      this.questions = asked.map(({ id, message, metadata }) => ({ id, text: message, args: metadata.ferrule.args }));
    }
    if (type === "RUN_ERROR") throw new Error(event.message);
  }
}

export class VercelConversation extends Conversation {
  constructor(address, id, show) {
    super(id, show);
    Object.assign(this, { address, messages: [] });
  }
  send(text) {
    this.messages.push({ id: crypto.randomUUID(), role: "user", parts: [{ type: "text", text }] });
    this.line(this.messages.at(-1).id, "user", text);
    return this.receive(this.fetch(this.address, { id: this.id, messages: this.messages }));
  }
  decide(question, approved) {
    const part = this.messages.at(-1).parts.find(({ toolCallId }) => toolCallId === question.toolCallId);
    Object.assign(part, { state: "approval-responded", approval: { id: question.id, approved } });
    return this.receive(this.fetch(this.address, { id: this.id, messages: this.messages }));
  }
  comeBack(messages) {
    this.messages = messages;
    for (const { id, role, parts } of messages) {
      const text = parts.filter(({ type }) => type === "text").map(({ text }) => text);
      this.line(id, role === "user" ? "user" : "text", text.join("\n"));
    }
    return this.receive(fetch(`${this.address}/${encodeURIComponent(this.id)}/stream`));
  }
  async receive(response) {
    this.questions = [];
    if ((await response).status === 204) return;
    for await (const chunk of messages(await response)) this.take(chunk);
    this.show(this);
  }
  take(chunk) {
    const { type, id, toolCallId, delta } = chunk;
    if (type === "start" && this.messages.at(-1)?.role !== "assistant") {
      this.messages.push({ id: chunk.messageId, role: "assistant", parts: [] });
    }
    const parts = this.messages.at(-1)?.parts;
    if (type === "text-start") parts.push({ type: "text", id, text: "" });
    if (type === "text-delta") {
      parts.findLast((part) => part.id === id).text += delta;
      this.line(id, "text", delta);
    }
    if (type === "text-end" && chunk.providerMetadata?.ferrule?.void) this.lines = this.lines.filter((line) => line.id !== id);
    if (type === "reasoning-delta") this.line(id, "thought", delta);
    if (type === "tool-input-start") parts.push({ type: `tool-${chunk.toolName}`, toolCallId, state: "input-streaming" });
    if (type === "tool-input-available") {
      Object.assign(parts.find((part) => part.toolCallId === toolCallId), { state: "input-available", input: chunk.input });
      this.line(toolCallId, "call").text = `${chunk.toolName} ${JSON.stringify(chunk.input)}`;
    }
    if (type === "tool-approval-request") this.questions.push({ id: chunk.approvalId, toolCallId, text: chunk.reason });
    if (type.startsWith("tool-output-")) {
      const { output, errorText } = chunk;
      Object.assign(parts.find((part) => part.toolCallId === toolCallId), { state: type.slice("tool-".length), output, errorText });
      this.line(toolCallId, "call").result = output ?? errorText ?? "denied";
    }
    if (type === "error") throw new Error(chunk.errorText);
  }
}
