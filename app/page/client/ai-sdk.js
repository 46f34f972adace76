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
import { LinkState } from "./link.js";
import { isUnfinished } from "./live-replies.js";
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
/** Messages of this page that are found under the ids that they have here. An older one is not: an edit of it is a new message. */
const FOUND = 1000;

export class MidstreamChatTransport {
  /** A resumed stream repeats its message from the start. */
  resumeStreamIsReplay = true;
  #client;
  #replyOptions;
  /** @type {Map<string, Reply>} The replies to messages of this page that the server had not accepted, by the messages' ids. */ #begun = new Map();
  /** @type {Map<string, string>} The turns of the newest messages of this page, by the messages' ids. */ #turns = new Map();
  /** @type {Map<string, string>} The first turns of the messages that `messages` left out, by their chats. */ #leftOut = new Map();

  /** @param {{client: ChatClient} & Wishes} options  `client`: it names the features `reasoning` and `tools` */
  constructor({ client, ...wishes }) {
    this.#client = client;
    this.#replyOptions = wishes;
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
    const options = { onBusy: /** @type {const} */ ("interrupt"), ...this.#replyOptions, ...body, conversationId: chatId };
    const replaced = trigger === "regenerate-message" ? (messageId ?? last.id) : messageId;
    const found = replaced === undefined ? null : await this.#exchange(chatId, replaced, last.id);
    abortSignal?.throwIfAborted();
    const reply = this.#begin(found, { trigger, last, options });
    this.#note();
    this.#begun.set(last.id, reply);
    const stream = this.#follow(chatId, abortSignal, new UIMessageStream());
    stream.take(reply);
    return stream.readable;
  }

  /**
   * The message that is being written in a chat, from its start; null if there is none. A message that `messages` left out is
   * streamed even if it has ended since.
   * @param {{chatId: string, abortSignal?: AbortSignal | undefined}} options
   * @returns {Promise<ReadableStream<any> | null>}
   */
  async reconnectToStream({ chatId, abortSignal }) {
    const chain = chainOf(await this.#opened(chatId, abortSignal));
    const last = chain.at(-1);
    if (last === undefined) return null;
    const running = isRunning(last);
    if (!running && this.#leftOut.get(chatId) !== chain[0].turn_id) return null;
    const reply = this.#client.repliesOf(chatId).find(({ turnId }) => turnId === last.turn_id);
    if (running && reply === undefined) return null;
    abortSignal?.throwIfAborted();
    const stream = this.#follow(chatId, abortSignal, new UIMessageStream());
    stream.whenOver(() => abortSignal?.aborted || this.#leftOut.delete(chatId));
    for (const message of running ? chain.slice(0, -1) : chain) stream.past(message, callsOf(message));
    if (running && reply !== undefined) stream.take(reply);
    else stream.ended(last, callsOf(last));
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
    this.#leftOut.delete(chatId);
    if (last === undefined || !isRunning(last)) return uiMessages(messages);
    keep(this.#leftOut, chatId, chain[0].turn_id);
    return uiMessages(messages.slice(0, -chain.length));
  }

  /**
   * @param {{user: Message, replyId: string | null} | null} found
   * @param {{trigger: string, last: UIMessage, options: MessageOptions}} request
   */
  #begin(found, { trigger, last, options }) {
    if (found === null) return this.#client.send({ ...options, content: textOf(last) });
    const { message_id: messageId, attachments = [] } = found.user;
    // Images of other doors are not shown here, so an edit can't mean to take them out.
    if (trigger === "submit-message") return this.#client.edit({ ...options, messageId, content: textOf(last), attachments });
    if (found.replyId === null) throw new ChatError("not_found", "There is no reply that could be made anew.");
    return this.#client.regenerate({ ...options, messageId: found.replyId });
  }

  /**
   * The user's message that is meant, and the reply to it; null if the server has neither.
   * @param {string} chatId
   * @param {string[]} names
   */
  async #exchange(chatId, ...names) {
    /** @type {Message[]} */ const messages = [];
    for (let page = await this.#page(chatId); page !== null; page = page.has_more ? await this.#page(chatId, page.messages[0].message_id) : null) {
      this.#note(); // a message may have been accepted while the page was on its way
      const ids = names.flatMap((name) => [name, this.#turns.get(name) ?? name]);
      messages.unshift(...page.messages);
      const found = messages.find((message) => ids.includes(message.message_id) || ids.includes(message.turn_id));
      const user = questionOf(found, messages);
      if (user === undefined) continue;
      const reply = messages.find(({ parent_id: parentId }) => parentId === user.message_id);
      return { user, replyId: reply?.message_id ?? null };
    }
    return null;
  }

  /** Notes the turns of messages that were accepted meanwhile. Their replies, with all their text, are let go of. */
  #note() {
    for (const [name, { turnId, open }] of this.#begun) {
      if (turnId !== null) keep(this.#turns, name, turnId);
      if (turnId !== null || !open) this.#begun.delete(name);
    }
  }

  /** A page of a chat's history; null if there is no such chat. @param {string} chatId @param {string} [before] */
  async #page(chatId, before) {
    try {
      return await this.#client.history({ conversationId: chatId, before, limit: PAGE });
    } catch (error) {
      if (error instanceof ChatError && error.code === "not_found") return null;
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
    if (reply === undefined) throw new ChatError("not_found", "None of the calls that are answered is open; reload the chat.");
    const answers = message.parts.flatMap((part) => {
      const call = reply.callOf(part.toolCallId);
      return call !== undefined && isAnswer(part, call) ? [{ call, part }] : [];
    });
    const stream = new UIMessageStream({ messageId: message.id });
    stream.goOn(reply, answers.filter(({ call, part }) => settles(part, call)).map(({ call }) => call.callId));
    this.#follow(chatId, abortSignal, stream);
    try {
      for (const { call, part } of answers) {
        abortSignal?.throwIfAborted();
        if (isAnswer(part, call)) await this.#answer(chatId, call, part);
      }
    } catch (error) {
      stream.close();
      abortSignal?.throwIfAborted();
      throw error;
    }
    stream.pause();
    return stream.readable;
  }

  /** @param {string} chatId @param {Call} call @param {any} part */
  async #answer(chatId, call, part) {
    const named = { callId: call.callId, conversationId: chatId };
    if (part.state === "approval-responded") {
      if (part.approval.id !== approvalId(call)) throw new ChatError("conflict", "The call has other arguments than those that were shown.");
      const decision = part.approval.approved ? "allow" : "deny";
      await this.#client.toolDecision({ ...named, argsSha256: call.argsSha256, decision });
    } else if (part.state === "output-available") {
      const { output } = part;
      await this.#client.toolResult({ ...named, content: typeof output === "string" ? output : JSON.stringify(output) });
    } else {
      await this.#client.toolResult({ ...named, error: part.errorText });
    }
  }

  /**
   * Writes what happens in a chat into its stream. An abort stops the reply; a reader that only leaves does not.
   * @param {string} chatId
   * @param {AbortSignal | undefined} abortSignal
   * @param {UIMessageStream} stream
   */
  #follow(chatId, abortSignal, stream) {
    const client = this.#client;
    const onReply = (/** @type {Event} */ event) => {
      const { reply } = /** @type {CustomEvent<{reply: Reply}>} */ (event).detail;
      if (reply.conversationId !== chatId || stream.reply === null) return;
      if (reply === stream.reply || reply.follows === stream.reply.turnId) stream.take(reply);
    };
    const stop = () => {
      const { reply, over, streamedChars } = stream;
      stream.close(); // first: that a message is taken back is no error
      // If the server refuses a stop, the reply continues and is in the history; nothing waits for the answer.
      if (reply !== null && !over) client.stop(reply, { seenOff: streamedChars }).catch(() => undefined);
    };
    client.addEventListener("reply", onReply);
    abortSignal?.addEventListener("abort", stop, { once: true });
    stream.whenOver(() => {
      this.#note();
      client.removeEventListener("reply", onReply);
      abortSignal?.removeEventListener("abort", stop);
    });
    return stream;
  }

  /**
   * The newest messages of a chat, which is followed from then on; none if it does not exist. Waits for a connection.
   * Raises ChatError.
   * @param {string} chatId
   * @param {AbortSignal} [abortSignal]
   * @returns {Promise<Message[]>}
   */
  async #opened(chatId, abortSignal) {
    for (;;) {
      try {
        return (await unlessAborted(this.#client.read(chatId), abortSignal)).messages;
      } catch (error) {
        if (!(error instanceof ChatError)) throw error;
        if (error.code === "not_found") return [];
        if (!error.lost) throw error;
      }
      await unlessAborted(this.#connected(abortSignal), abortSignal);
    }
  }

  /** Waits until a connection is open. @param {AbortSignal} [signal] @returns {Promise<void>} */
  #connected(signal) {
    const client = this.#client;
    if (client.connection.state === LinkState.CONNECTED) return Promise.resolve();
    return new Promise((resolve) => client.addEventListener("ready", () => resolve(), { once: true, signal }));
  }
}

/** Keeps a name as the newest one, and lets go of the oldest beyond the bound. @param {Map<string, string>} names @param {string} name @param {string} value */
function keep(names, name, value) {
  names.delete(name);
  names.set(name, value);
  if (names.size > FOUND) names.delete([...names.keys()][0]);
}

/**
 * What a promise gives. Rejects once the signal aborts.
 * @template T
 * @param {Promise<T>} promise
 * @param {AbortSignal} [signal]
 * @returns {Promise<T>}
 */
function unlessAborted(promise, signal) {
  if (signal === undefined) return promise;
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
    if (signal.aborted) abort();
  });
}

/** Whether a part of a message answers a call that is open. @param {any} part @param {Call} call */
function isAnswer({ state }, call) {
  if (state === "approval-responded") return call.needsDecision;
  return call.open && call.where === "client" && (state === "output-available" || state === "output-error");
}

/** Whether nothing more is asked of the client after an answer. It runs a call of its own that it allows. @param {any} part @param {Call} call */
function settles({ state, approval }, call) {
  return state !== "approval-responded" || call.where === "server" || !approval.approved;
}

/** The user's message that a reply answers, perhaps after calls. @param {Message | undefined} found @param {Message[]} messages */
function questionOf(found, messages) {
  while (found?.role === "assistant") {
    const { parent_id: parentId } = found;
    found = messages.find(({ message_id: id }) => id === parentId);
  }
  return found;
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
  if (parts.some(({ type }) => type === "file")) throw new ChatError("bad_params", "This transport sends text only, and no files.");
  const texts = parts.filter(({ type }) => type === "text").map(({ text }) => text);
  return texts.join("\n\n");
}

/** A history in a front end's form: replies that follow calls are steps of one message. @param {Message[]} messages */
function uiMessages(messages) {
  /** @type {UIMessage[]} */
  const converted = [];
  for (const message of messages) {
    if (message.role === "user") {
      converted.push({ id: message.message_id, role: "user", parts: [{ type: "text", text: message.content }] });
      continue;
    }
    if (converted.at(-1)?.role !== "assistant") converted.push({ id: message.turn_id, role: "assistant", parts: [] });
    converted.at(-1)?.parts.push({ type: "step-start" }, ...partsOf(message));
  }
  return converted;
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
  if (call.needsDecision) return { ...part, state: "approval-requested", approval: { id: approvalId(call) } };
  const outcome = outcomeOf(call);
  if (outcome === null) return { ...part, state: "input-available" };
  if (outcome.type === "tool-output-available") return { ...part, state: "output-available", output: outcome.output };
  if (outcome.type === "tool-output-error") return { ...part, state: "output-error", errorText: outcome.errorText };
  return { ...part, state: "output-denied", approval: { id: approvalId(call), approved: false } };
}
