import { ReplyState } from "../../client/reply.js";
import { Arrangement } from "./arrangement.js";

/** @typedef {import("../../client/reply.js").Reply} Reply */
/** @typedef {import("../../client/frames.js").Message} Message */
/** @typedef {import("../../client/frames.js").History} History */
/** @typedef {import("./arrangement.js").Item} Item */

/** What there is to show of one conversation: pages of its active branch, and the live replies that came after or complete them. */
export class Transcript {
  /** @type {Message[]} */ #messages = [];
  /** @type {Set<Reply>} */ #replies = new Set();
  #arrangement = new Arrangement();
  /** Whether older messages than these exist. */
  hasMore = false;

  /** Whether it is known what the server keeps of it. */
  loaded = false;
  /** @type {string | null} The epoch of the newest page. */ #epoch = null;

  /** @param {string} conversationId */
  constructor(conversationId) {
    this.conversationId = conversationId;
  }

  /** The message that older ones come before; undefined where there is none. */
  get oldest() {
    return this.#messages[0]?.message_id;
  }

  /**
   * The model that was asked for a reply last, where another stood in for it, too; null where none was, or that is not known.
   * One that translated live is not asked for messages.
   * @returns {string | null}
   */
  get model() {
    const sources = new Set(this.#messages.filter(({ interprets }) => interprets).map(({ message_id: id }) => id));
    const live = [...this.#replies].findLast(({ done, interprets }) => done?.model && interprets === null);
    const kept = this.#messages.findLast(({ model, parent_id: parent }) => model && !sources.has(parent ?? ""));
    return asked(live) ?? kept?.model ?? null;
  }

  /** The model that was asked for a reply, or by a message; null where that is not known. @param {string} messageId @returns {string | null} */
  modelOf(messageId) {
    const meant = this.#messages.find(({ message_id: id }) => id === messageId);
    const live = [...this.#replies].findLast((reply) => reply.messageId === messageId || reply.done?.message_id === messageId);
    const kept = this.#messages.find(({ model, turn_id: turn }) => model && turn === meant?.turn_id);
    return asked(live) ?? kept?.model ?? null;
  }

  /** Whether a message of the history is among those that are shown. @param {string} messageId */
  has(messageId) {
    return this.#messages.some(({ message_id: id }) => id === messageId);
  }

  /** @param {Reply} reply */
  take(reply) {
    this.#replies.add(reply);
  }

  /** Forgets a message that never reached the server. @param {Reply} reply */
  drop(reply) {
    this.#replies.delete(reply);
  }

  /** Takes the newest page; pages of older messages that still join it stay. @param {History} page */
  refresh({ messages, has_more: hasMore, epoch, seq }) {
    const overlap = this.#messages.findIndex(({ message_id: id }) => id === messages[0]?.message_id);
    this.hasMore = overlap > 0 ? this.hasMore : hasMore;
    this.#messages = [...this.#messages.slice(0, Math.max(overlap, 0)), ...messages];
    // In another epoch the server has lost what came before, and numbers tell nothing of it.
    this.#forgetTold({ messages: this.#messages, seq: [epoch, null].includes(this.#epoch) ? seq : Infinity });
    this.#epoch = epoch;
    this.loaded = true;
  }

  /** Takes that the server has nothing of it; what it refused or never got stays to be sent again. */
  empty() {
    this.loaded = true;
    this.hasMore = false;
    this.#messages = [];
    for (const reply of this.#replies) if (reply.turnId !== null) this.#replies.delete(reply);
  }

  /** Takes a page of older messages. @param {History} page */
  prepend({ messages, has_more: hasMore }) {
    this.hasMore = hasMore;
    this.#messages = [...messages, ...this.#messages];
  }

  /** Takes an exchange back. @param {string} turnId */
  remove(turnId) {
    this.#messages = this.#messages.filter((message) => message.turn_id !== turnId);
    for (const reply of this.#replies) if (reply.turnId === turnId) this.#replies.delete(reply);
  }

  /** What the conversation began with; null where that is not here. */
  get beginning() {
    if (this.hasMore || !this.loaded) return null;
    const [first] = this.items();
    return first?.interprets ? first.source : (first?.text ?? null);
  }

  /** @returns {Item[]} oldest first; another array wherever an item came, went or moved */
  items() {
    return this.#arrangement.of(this.#messages, this.#replies);
  }

  /**
   * Replies that history has whole, or that are not on the branch it shows, need not be known beside it; what the server
   * did not take stays, as unsent. A turn that runs is always on the active branch.
   * @param {{messages: Message[], seq: number}} known
   */
  #forgetTold({ messages, seq }) {
    const answered = new Set(messages.filter(({ role }) => role === "assistant").map((message) => message.turn_id));
    for (const reply of this.#replies) {
      const lost = reply.state === ReplyState.WITHDRAWN && reply.turnId !== null;
      // One whose calls were open when this page came has ended without a `done` that was told here.
      const told = reply.done === null ? reply.state === ReplyState.ENDED : reply.done.seq <= seq;
      const elsewhere = told && !answered.has(reply.turnId ?? "");
      if (lost || elsewhere) this.#replies.delete(reply);
    }
  }
}

/** @param {Reply | undefined} reply @returns {string | null} */
function asked(reply) {
  return reply?.done?.requested_model ?? reply?.done?.model ?? null;
}
