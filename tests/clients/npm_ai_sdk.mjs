// Two tools in one message: the client's own, and one that has to be allowed; then a stop in the middle of a reply.
import { ChatClient } from "midstream-client";
import { MidstreamChatTransport } from "midstream-client/ai-sdk.js";
import WebSocket from "ws";

const url = process.env.MIDSTREAM_URL;
const client = new ChatClient({ url, Socket: WebSocket, features: ["reasoning", "tools"] });
client.connect();
const tools = [{ name: "weather" }, { name: "pay", approval: "always" }];
const transport = new MidstreamChatTransport({ client, tools });
const chatId = "chat";
const user = (id, text) => ({ id, role: "user", parts: [{ type: "text", text }] });

async function chunksOf(stream, until = () => false) {
  const chunks = [];
  for await (const chunk of stream) {
    chunks.push(chunk);
    if (until(chunk)) break;
  }
  return chunks;
}

const sent = (messages, more = {}) => transport.sendMessages({ trigger: "submit-message", chatId, messages, ...more });
const replies = [await chunksOf(await sent([user("u1", "Rain?")]))];
const calls = replies[0].filter(({ type }) => type === "tool-input-available");
const { approvalId } = replies[0].find(({ type }) => type === "tool-approval-request");
const reply = { id: replies[0][0].messageId, role: "assistant" };
const part = ({ toolCallId, toolName }) => ({ type: `tool-${toolName}`, toolCallId });
const weather = { ...part(calls[0]), state: "output-available", output: { sky: "grey" } };
const allowed = { ...part(calls[1]), state: "approval-responded", approval: { id: approvalId, approved: true } };
replies.push(await chunksOf(await sent([reply, { ...reply, parts: [weather, allowed] }])));
const paid = { ...part(calls[1]), state: "output-available", output: "Paid." };
replies.push(await chunksOf(await sent([{ ...reply, parts: [weather, paid] }])));

const anew = { trigger: "regenerate-message", messageId: reply.id };
replies.push(await chunksOf(await sent([user("u1", "Rain?")], anew)));
const stopping = new AbortController();
const stream = await sent([user("u2", "Count!")], { abortSignal: stopping.signal });
const seen = [];
for await (const chunk of stream) {
  seen.push(chunk);
  if (chunk.type === "text-delta" && seen.filter(({ type }) => type === "text-delta").length === 2) stopping.abort();
}
replies.push(seen);
let kept = await transport.messages(chatId);
while (kept.length < 4) kept = await transport.messages(chatId);
const running = await transport.reconnectToStream({ chatId });

// A message of three replies is resumed in the third, by another visit of the same person.
const visit = (storage) => {
  const visitor = new ChatClient({ url, storage, Socket: WebSocket, features: ["reasoning", "tools"] });
  visitor.connect();
  return visitor;
};
const kept2 = new Map();
const storage = { getItem: (key) => kept2.get(key) ?? null, setItem: (key, value) => kept2.set(key, value) };
const first = visit(storage);
const noon = new MidstreamChatTransport({ client: first, tools: [{ name: "noon", where: "server" }] });
const noonStream = await noon.sendMessages({ trigger: "submit-message", chatId: "noon", messages: [user("n1", "Noon?")] });
await chunksOf(noonStream, ({ type, delta }) => type === "text-delta" && delta.includes("word"));
const second = visit(storage);
const resumed = await new MidstreamChatTransport({ client: second }).reconnectToStream({ chatId: "noon" });
replies.push(await chunksOf(resumed));
console.log(JSON.stringify({ told: replies, kept, running }));
for (const one of [client, first, second]) one.close();
