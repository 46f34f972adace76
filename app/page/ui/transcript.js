import { ReplyState } from "../client/reply.js";

/** @typedef {import("../client/reply.js").Reply} Reply */
/** @typedef {import("../client/frames.js").Message} Message */
/**
 * One message as it is to be shown.
 * @typedef {object} Item
 * @property {string} key              the same for as long as the message is shown
 * @property {"user" | "assistant"} role
 * @property {string} text
 * @property {string} status           a ReplyState while it is under way; then "complete", the reason of the end, or "lost"
 * @property {Reply | null} reply      where it is known live: its timing, its failure
 * @property {import("../client/frames.js").Usage | null} usage
 */

/** The status of a reply that history tells as far as it has come; its live Reply knows more. */
const RUNNING = "running";

/** What there is to show of one conversation: pages of history, and the live replies that came after or complete them. */
export class Transcript {
  /** @type {Message[]} */ #messages = [];
  /** @type {Set<Reply>} */ #replies = new Set();
  /** Whether older messages than these exist. */
  hasMore = false;

  /** Whether it is known what the server keeps of it. */
  loaded = false;

  /** @param {string} conversationId */
  constructor(conversationId) {
    this.conversationId = conversationId;
  }

  /** The message that older ones come before; undefined where there is none. */
  get oldest() {
    return this.#messages[0]?.message_id;
  }

  /** @param {Reply} reply */
  take(reply) {
    this.#replies.add(reply);
  }

  /** Forgets a message that never reached the server. @param {Reply} reply */
  drop(reply) {
    this.#replies.delete(reply);
  }

  /** Takes the newest page; pages of older messages that still join it stay. @param {import("../client/frames.js").History} page */
  refresh({ messages, has_more: hasMore }) {
    const overlap = this.#messages.findIndex(({ message_id: id }) => id === messages[0]?.message_id);
    this.hasMore = overlap > 0 ? this.hasMore : hasMore;
    this.#messages = [...this.#messages.slice(0, Math.max(overlap, 0)), ...messages];
    this.loaded = true;
    this.#forgetWithdrawn();
  }

  /** Takes that the server has nothing of it; what it refused or never got stays to be sent again. */
  empty() {
    this.loaded = true;
    this.hasMore = false;
    this.#messages = [];
    for (const reply of this.#replies) if (reply.turnId !== null) this.#replies.delete(reply);
  }

  /** Takes a page of older messages. @param {import("../client/frames.js").History} page */
  prepend({ messages, has_more: hasMore }) {
    this.hasMore = hasMore;
    this.#messages = [...messages, ...this.#messages];
  }

  /** Takes an exchange back. @param {string} turnId */
  remove(turnId) {
    this.#messages = this.#messages.filter((message) => message.turn_id !== turnId);
    for (const reply of this.#replies) if (reply.turnId === turnId) this.#replies.delete(reply);
  }

  /** @returns {Item[]} oldest first */
  items() {
    return arrange(this.#messages, [...this.#replies]);
  }

  /** What the server took of a withdrawn message is in its history; what it did not take stays, as unsent. */
  #forgetWithdrawn() {
    for (const reply of this.#replies) {
      if (reply.state === ReplyState.WITHDRAWN && reply.turnId !== null) this.#replies.delete(reply);
    }
  }
}

/**
 * History first, each message with what is known live of its turn; then the replies that history does not have yet.
 * @param {Message[]} messages
 * @param {Reply[]} replies
 * @returns {Item[]}
 */
export function arrange(messages, replies) {
  const byTurn = new Map(replies.filter((reply) => reply.turnId !== null).map((reply) => [reply.turnId, reply]));
  const kept = new Map(messages.filter(({ role }) => role === "assistant").map((message) => [message.turn_id, message]));
  const asked = new Set(messages.filter(({ role }) => role === "user").map((message) => message.turn_id));
  /** @type {Item[]} */ const items = [];
  for (const message of messages) {
    const reply = byTurn.get(message.turn_id) ?? null;
    items.push(...(message.role === "user" ? [question(message, reply)] : answer(message, reply)));
    if (message.role === "user" && reply !== null && !kept.has(message.turn_id)) items.push(...liveAnswer(reply));
  }
  for (const reply of replies) if (!asked.has(reply.turnId ?? "")) items.push(...liveQuestion(reply), ...liveAnswer(reply));
  return items;
}

/** @param {Reply} reply */
function keyOf(reply) {
  return reply.clientMsgId ?? reply.turnId ?? "";
}

/** The key of the item that shows a reply's text. @param {Reply} reply */
export function answerKey(reply) {
  return `assistant:${keyOf(reply)}`;
}

/** @returns {Item} @param {Message} message @param {Reply | null} reply */
function question(message, reply) {
  const key = `user:${reply === null ? message.turn_id : keyOf(reply)}`;
  return { key, role: "user", text: message.content, status: "complete", reply: null, usage: null };
}

/** @returns {Item[]} @param {Message} message @param {Reply | null} reply */
function answer(message, reply) {
  if (message.status === RUNNING && reply !== null) return liveAnswer(reply);
  const key = reply === null ? `assistant:${message.turn_id}` : answerKey(reply);
  const usage = message.usage ?? reply?.done?.usage ?? null;
  const status = message.status === "complete" ? (reply?.done?.reason ?? "complete") : message.status;
  return [{ key, role: "assistant", text: message.content, status, reply, usage }];
}

/** @returns {Item[]} @param {Reply} reply */
function liveQuestion(reply) {
  if (reply.content === null) return [];
  return [{ key: `user:${keyOf(reply)}`, role: "user", text: reply.content, status: reply.state, reply, usage: null }];
}

/** @returns {Item[]} @param {Reply} reply */
function liveAnswer(reply) {
  const unanswered = reply.state === ReplyState.REFUSED || (reply.state === ReplyState.WITHDRAWN && reply.turnId === null);
  if (unanswered) return [];
  const status = reply.state === ReplyState.WITHDRAWN ? "lost" : (reply.done?.reason ?? reply.state);
  const usage = reply.done?.usage ?? null;
  return [{ key: answerKey(reply), role: "assistant", text: reply.visible, status, reply, usage }];
}
