// What the types of the page's client promise to a strict reader. It is only checked, never run.
import { type Call, ChatClient, ChatError, ReplyState, type MessageOptions, type Reply } from "midstream-client";
import { Backoff } from "midstream-client/backoff.js";
import { Credentials } from "midstream-client/credentials.js";
import type { Done, Frame, History, OfferedTool, Request, ToolAck } from "midstream-client/frames.js";

const credentials = new Credentials({ session: null, lasting: localStorage, ticketUrl: "/v1/tickets" });
const options = { url: "ws://127.0.0.1:8000/v1/ws", storage: localStorage, credentials, Socket: WebSocket };
const client = new ChatClient({ ...options, backoff: new Backoff() });

export async function talk(content: string): Promise<string> {
  const how: MessageOptions = { conversationId: "types", onBusy: "interrupt", params: { temperature: 0 } };
  const reply: Reply = client.send({ ...how, content });
  const done: Done | null = reply.done;
  const page: History = await client.history({ conversationId: "types" });
  const first: "user" | "assistant" | undefined = page.messages[0]?.role;
  const cancelled = await client.cancel({ conversationId: "types", seenOff: reply.chars });
  return [reply.state === ReplyState.ENDED, done?.timing.first_token_ms?.toFixed(), first, cancelled?.already].join();
}

export async function answer(content: string): Promise<string | null> {
  const tools: OfferedTool[] = [{ name: "weather", approval: "always" }];
  const able = new ChatClient({ ...options, features: ["reasoning", "tools"] });
  const reply: Reply = able.send({ content, tools, toolChoice: "auto" });
  const call: Call | undefined = reply.calls[0];
  const { callId, argsSha256 } = call;
  const ack: ToolAck = await able.toolDecision({ callId, argsSha256, decision: call.needsDecision ? "deny" : "allow" });
  await able.toolResult({ callId, error: ack.state });
  return reply.follows ?? reply.reasoning.text;
}

export function shown(frame: Frame): string {
  switch (frame.type) {
    case "delta":
      return frame.text;
    case "done":
      return frame.cancel?.cause ?? frame.reason;
    case "error":
      return new ChatError(frame.code, frame.message).message;
    default:
      return frame.type;
  }
}

export const request: Request = { type: "send", client_msg_id: "1", content: "Hello!", on_busy: "enqueue" };

// @ts-expect-error - a policy that there is not
export const wrong: Request = { type: "send", client_msg_id: "1", content: "Hello!", on_busy: "queue" };

// @ts-expect-error - a result is a content or an error
client.toolResult({ callId: "1", content: "Rain.", error: "None." });

// @ts-expect-error - content is missing
client.send({ conversationId: "types" });
