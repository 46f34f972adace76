/**
 * A transport for the AI SDK's `useChat`, over a `ChatClient`. All chats share one socket, which reconnects by itself.
 *
 *     const client = new ChatClient({ url: "wss://chat.example/v1/ws", storage: localStorage, features: ["reasoning", "tools"] });
 *     client.connect();
 *     const transport = new MidstreamChatTransport({ client });
 *     const chat = useChat({ id: "greetings", transport, messages: await transport.messages("greetings"), resume: true });
 *
 * A chat's id is the id of a conversation. A stop keeps the text that was received by then. Only the last message is sent,
 * since the server's history has those before it. The class has the shape of the AI SDK's `ChatTransport`, and needs none
 * of its code.
 */

import { Call } from "./call.js";
import { ChatError } from "./errors.js";
import { isUnfinished } from "./live-replies.js";
import { ReplyState } from "./reply.js";
import { UIMessageStream, approvalId, outcomeOf, waitsForClient } from "./ui-message-stream.js";

/** @typedef {import("./chat-client.js").ChatClient} ChatClient */
/** @typedef {import("./reply.js").Reply} Reply */
/** @typedef {import("./frames.js").Message} Message */
/** @typedef {import("./outgoing.js").MessageOptions} MessageOptions */
/** @typedef {Pick<MessageOptions, "params" | "tools" | "toolChoice" | "onBusy">} Wishes  how replies are made */
/** @typedef {{id: string, role: "system" | "user" | "assistant", parts: any[]}} UIMessage */
/** @typedef {import("./ui-message-stream.js").UIMessageChunk} UIMessageChunk */

/** Messages of the history that are read: as many as a page may have. */
const PAGE = 200;

export class MidstreamChatTransport {
  /** A resumed stream repeats its message from the start. */
  resumeStreamIsReplay = true;
  #client;
  #wishes;
  /** @type {Map<string, string>} The turns that messages of this page began, by the messages' ids. */ #turns = new Map();

  /** @param {{client: ChatClient} & Wishes} options  `client`: it names the features `reasoning` and `tools` */
  constructor({ client, ...wishes }) {
    this.#client = client;
    this.#wishes = wishes;
  }

  /**
   * Sends a message, regenerates a reply, or sends the results of calls. The reply comes as chunks.
   * @param {{trigger: "submit-message" | "regenerate-message", chatId: string, messageId?: string | undefined, messages: UIMessage[], abortSignal?: AbortSignal | undefined, body?: object | undefined}} options  `body`: `Wishes` for this reply only
   * @returns {Promise<ReadableStream<any>>}
   */
  async sendMessages({ trigger, chatId, messageId, messages, abortSignal, body }) {
    abortSignal?.throwIfAborted();
    const last = messages.at(-1);
    if (last === undefined) throw new ChatError("bad_params", "There is no message to send.");
    if (last.role === "assistant") return this.#settle(chatId, last, abortSignal);
    const options = { onBusy: /** @type {const} */ ("interrupt"), ...this.#wishes, ...body, conversationId: chatId };
    const content = textOf(last);
    const replaced = trigger === "regenerate-message" ? (messageId ?? last.id) : messageId;
    const found = replaced === undefined ? null : await this.#exchange(chatId, replaced, last.id);
    abortSignal?.throwIfAborted();
    const reply = this.#begin(found, { trigger, content, options });
    const stream = this.#follow(chatId, abortSignal, new UIMessageStream());
    stream.take(reply);
    const note = () => void (reply.turnId !== null && this.#turns.set(last.id, reply.turnId));
    stream.whenOver(note);
    return stream.readable;
  }

  /**
   * The message that is being written in a chat, from its start; null if there is none.
   * @param {{chatId: string, abortSignal?: AbortSignal | undefined}} options
   * @returns {Promise<ReadableStream<any> | null>}
   */
  async reconnectToStream({ chatId, abortSignal }) {
    const chain = chainOf(await this.#opened(chatId, abortSignal));
    const last = chain.at(-1);
    if (last === undefined || !isRunning(last)) return null;
    const reply = this.#client.repliesOf(chatId).find(({ turnId }) => turnId === last.turn_id);
    if (reply === undefined) return null; // It has ended since.
    abortSignal?.throwIfAborted();
    const stream = this.#follow(chatId, abortSignal, new UIMessageStream());
    for (const message of chain.slice(0, -1)) stream.past(message, callsOf(message));
    stream.take(reply);
    return stream.readable;
  }

  /**
   * The messages of a chat that `useChat` begins with: all but the one that is being written. Raises ChatError.
   * @param {string} chatId
   * @returns {Promise<any[]>}
   */
  async messages(chatId) {
    const messages = await this.#opened(chatId);
    const chain = chainOf(messages);
    const last = chain.at(-1);
    return uiMessages(last !== undefined && isRunning(last) ? messages.slice(0, -chain.length) : messages);
  }

  /**
   * @param {{messageId: string, replyId: string | null} | null} found
   * @param {{trigger: string, content: string, options: MessageOptions}} wish
   */
  #begin(found, { trigger, content, options }) {
    if (found === null) return this.#client.send({ ...options, content });
    if (trigger === "submit-message") return this.#client.edit({ ...options, messageId: found.messageId, content });
    if (found.replyId === null) throw new ChatError("not_found", "There is no reply that could be made anew.");
    return this.#client.regenerate({ ...options, messageId: found.replyId });
  }

  /**
   * The user's message that is meant, and the reply to it; null if the server has neither.
   * @param {string} chatId
   * @param {string[]} names
   */
  async #exchange(chatId, ...names) {
    const ids = names.flatMap((name) => [name, this.#turns.get(name) ?? name]);
    const messages = await this.#kept(chatId);
    const found = messages.find((message) => ids.includes(message.message_id) || ids.includes(message.turn_id));
    if (found === undefined) return null;
    const user = found.role === "user" ? found : messages.find(({ message_id: id }) => id === found.parent_id);
    if (user === undefined) return null;
    const reply = messages.find(({ parent_id: parentId }) => parentId === user.message_id);
    return { messageId: user.message_id, replyId: reply?.message_id ?? null };
  }

  /** @param {string} chatId @returns {Promise<Message[]>} */
  async #kept(chatId) {
    try {
      return (await this.#client.history({ conversationId: chatId, limit: PAGE })).messages;
    } catch (error) {
      if (error instanceof ChatError && error.code === "not_found") return [];
      throw error;
    }
  }

  /**
   * Sends the results of a message's calls. The message goes on then.
   * @param {string} chatId
   * @param {UIMessage} message
   * @param {AbortSignal | undefined} abortSignal
   */
  async #settle(chatId, message, abortSignal) {
    const answered = new Set(message.parts.map(({ toolCallId }) => toolCallId));
    const replies = this.#client.repliesOf(chatId);
    const reply = replies.find(({ calls }) => calls.some((call) => call.open && answered.has(call.callId)));
    if (reply === undefined) throw new ChatError("not_found", "None of the calls that are answered is open; load the chat again.");
    const stream = new UIMessageStream({ messageId: message.id });
    stream.goOn(reply);
    this.#follow(chatId, abortSignal, stream);
    for (const part of message.parts) await this.#answer(chatId, reply.callOf(part.toolCallId), part);
    stream.pause();
    return stream.readable;
  }

  /** @param {string} chatId @param {Call | undefined} call @param {any} part */
  async #answer(chatId, call, part) {
    if (call === undefined || !call.open) return;
    const named = { callId: call.callId, conversationId: chatId };
    if (part.state === "approval-responded" && call.asks) {
      if (part.approval.id !== approvalId(call)) throw new ChatError("conflict", "The call has other arguments than those that were shown.");
      const decision = part.approval.approved ? "allow" : "deny";
      await this.#client.toolDecision({ ...named, argsSha256: call.argsSha256, decision });
    } else if (part.state === "output-available" && call.where === "client") {
      const { output } = part;
      await this.#client.toolResult({ ...named, content: typeof output === "string" ? output : JSON.stringify(output) });
    } else if (part.state === "output-error" && call.where === "client") {
      await this.#client.toolResult({ ...named, error: part.errorText });
    }
  }

  /**
   * Writes what happens in a chat into its stream. If the reader cancels the stream, the reply is stopped.
   * @param {string} chatId
   * @param {AbortSignal | undefined} abortSignal
   * @param {UIMessageStream} stream
   */
  #follow(chatId, abortSignal, stream) {
    const client = this.#client;
    const tell = (/** @type {Event} */ event) => {
      const { reply } = /** @type {CustomEvent<{reply: Reply}>} */ (event).detail;
      if (reply.conversationId !== chatId || stream.reply === null) return;
      if (reply === stream.reply || reply.follows === stream.reply.turnId) stream.take(reply);
    };
    const stop = () => {
      const { reply } = stream;
      if (reply?.open && !stream.over) this.#stop(chatId, reply.state === ReplyState.CALLING ? undefined : stream.toldChars);
      stream.close();
    };
    client.addEventListener("reply", tell);
    abortSignal?.addEventListener("abort", stop, { once: true });
    stream.whenOver(() => {
      client.removeEventListener("reply", tell);
      abortSignal?.removeEventListener("abort", stop);
    });
    return stream;
  }

  /** @param {string} chatId @param {number | undefined} seenOff */
  #stop(chatId, seenOff) {
    // If the server refuses a stop, the reply goes on and is in the history; nothing waits for the answer.
    this.#client.cancel({ conversationId: chatId, seenOff }).catch(() => undefined);
  }

  /**
   * The newest messages of a chat, which is followed from then on; none if it does not exist.
   * @param {string} chatId
   * @param {AbortSignal} [abortSignal]
   * @returns {Promise<Message[]>}
   */
  #opened(chatId, abortSignal) {
    const client = this.#client;
    return new Promise((resolve, reject) => {
      const found = (/** @type {Event} */ event) => {
        const { detail } = /** @type {CustomEvent} */ (event);
        if ((detail.conversation_id ?? detail.conversationId) !== chatId) return;
        settle();
        resolve(event.type === "history" ? detail.messages : []);
      };
      const aborted = () => {
        settle();
        reject(abortSignal?.reason);
      };
      const settle = () => {
        client.removeEventListener("history", found);
        client.removeEventListener("missing", found);
        abortSignal?.removeEventListener("abort", aborted);
      };
      if (abortSignal?.aborted) return reject(abortSignal.reason);
      client.addEventListener("history", found);
      client.addEventListener("missing", found);
      abortSignal?.addEventListener("abort", aborted);
      client.open(chatId);
    });
  }
}

/** The replies behind the user's last message. A front end shows them as one message. @param {Message[]} messages */
function chainOf(messages) {
  return messages.slice(messages.findLastIndex(({ role }) => role === "user") + 1);
}

/** Whether more of a reply comes without an answer of its client. @param {Message} message */
function isRunning(message) {
  if (!isUnfinished(message)) return false;
  return message.status === "running" || callsOf(message).some((call) => call.open && !waitsForClient(call));
}

/** @param {Message} message */
function callsOf({ calls = [] }) {
  return calls.map((call) => new Call(call));
}

/** @param {UIMessage} message */
function textOf({ parts }) {
  if (parts.some(({ type }) => type === "file")) throw new ChatError("bad_params", "This server takes text only, and no files.");
  const texts = parts.filter(({ type }) => type === "text").map(({ text }) => text);
  return texts.join("\n\n");
}

/** A history in a front end's form: replies that follow calls are steps of one message. @param {Message[]} messages */
function uiMessages(messages) {
  /** @type {UIMessage[]} */
  const told = [];
  for (const message of messages) {
    if (message.role === "user") {
      told.push({ id: message.message_id, role: "user", parts: [{ type: "text", text: message.content }] });
      continue;
    }
    if (told.at(-1)?.role !== "assistant") told.push({ id: message.turn_id, role: "assistant", parts: [] });
    told.at(-1)?.parts.push({ type: "step-start" }, ...partsOf(message));
  }
  return told;
}

/** @param {Message} message */
function partsOf(message) {
  const { reasoning = "", content } = message;
  const points = [...content];
  const parts = reasoning === "" ? [] : [{ type: "reasoning", text: reasoning, state: "done" }];
  const text = (/** @type {number} */ from, /** @type {number} */ to) => ({ type: "text", text: points.slice(from, to).join(""), state: "done" });
  let at = 0;
  for (const call of callsOf(message)) {
    if (call.off > at) parts.push(text(at, call.off));
    at = Math.max(at, call.off);
    parts.push(/** @type {any} */ (partOf(call)));
  }
  return at < points.length ? [...parts, text(at, points.length)] : parts;
}

/** A call as a part of a message. @param {Call} call */
function partOf(call) {
  const { callId: toolCallId, name, args } = call;
  const part = { type: `tool-${name}`, toolCallId, input: JSON.parse(args), ...(call.where === "server" && { providerExecuted: true }) };
  if (call.asks) return { ...part, state: "approval-requested", approval: { id: approvalId(call) } };
  const told = outcomeOf(call);
  if (told === null) return { ...part, state: "input-available" };
  if (told.type === "tool-output-available") return { ...part, state: "output-available", output: told.output };
  if (told.type === "tool-output-error") return { ...part, state: "output-error", errorText: told.errorText };
  return { ...part, state: "output-denied", approval: { id: approvalId(call), approved: false } };
}
