import { ReplyState } from "../../client/reply.js";
import { answerKey, arrange, kept, liveAnswer, standing } from "./arrangement.js";
import { randomId } from "../../client/identity.js";

/** @typedef {import("../../client/reply.js").Reply} Reply */
/** @typedef {import("../../client/frames.js").Message} Message */
/** @typedef {import("../../client/frames.js").History} History */
/** @typedef {import("./arrangement.js").Item} Item */

/** What can be shown of one conversation: pages of its active branch, and the live replies that complete or follow them. */
export class Transcript {
  /** @type {Message[]} */ #messages = [];
  /** @type {Set<Reply>} */ #replies = new Set();
  /** @type {Item[]} */ #items = [];
  /** @type {Message[] | null} The messages that are arranged in these items. */ #arranged = null;
  /** @type {Map<Reply, string>} The state of each reply then. */ #stood = new Map();
  /** @type {Map<Reply, {index: number, message: Message | undefined}>} The places of open replies. */ #open = new Map();
  /** Whether there are older messages. */
  hasMore = false;

  /** Whether the server's history is known. */
  loaded = false;
  /** @type {string | null} The epoch of the newest page. */ #epoch = null;

  /** @param {string} conversationId */
  constructor(conversationId) {
    this.conversationId = conversationId;
  }

  /** The oldest known message; undefined if there is none. */
  get oldest() {
    return this.#messages[0]?.message_id;
  }

  /**
   * The model that was last asked for a reply, even if another stood in for it; null if there is none, or it is unknown.
   * Models of live translations do not count.
   * @returns {string | null}
   */
  get model() {
    const sources = new Set(this.#messages.filter(({ interprets }) => interprets).map(({ message_id: id }) => id));
    const live = [...this.#replies].findLast(({ done, interprets }) => done?.model && interprets === null);
    const kept = this.#messages.findLast(({ model, parent_id: parent }) => model && !sources.has(parent ?? ""));
    return requestedModel(live) ?? kept?.model ?? null;
  }

  /** The model that a reply or a message asked for; null if it is unknown. @param {string} messageId @returns {string | null} */
  modelOf(messageId) {
    const meant = this.#messages.find(({ message_id: id }) => id === messageId);
    const live = [...this.#replies].findLast((reply) => reply.messageId === messageId || reply.done?.message_id === messageId);
    const kept = this.#messages.find(({ model, turn_id: turn }) => model && turn === meant?.turn_id);
    return requestedModel(live) ?? kept?.model ?? null;
  }

  /** Whether a message of the history is shown. @param {string} messageId */
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

  /** Takes the newest page. Pages of older messages stay if they still join it. @param {History} page */
  refresh({ messages, has_more: hasMore, epoch, seq }) {
    const overlap = this.#messages.findIndex(({ message_id: id }) => id === messages[0]?.message_id);
    this.hasMore = overlap > 0 ? this.hasMore : hasMore;
    this.#messages = [...this.#messages.slice(0, Math.max(overlap, 0)), ...messages];
    // A new epoch means that the server lost what came before, so old numbers mean nothing.
    this.#forgetStored({ messages: this.#messages, seq: [epoch, null].includes(this.#epoch) ? seq : Infinity });
    this.#epoch = epoch;
    this.loaded = true;
  }

  /** Takes that the server has nothing of it. Messages that it refused or never got stay, to be sent again. */
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

  /**
   * Reads older messages until `enough`, or until there are no more. Raises ChatError.
   * @param {import("../../client/chat-client.js").ChatClient} client
   * @param {() => boolean} enough  asked before each further page
   */
  async readOlder(client, enough) {
    let { oldest: before } = this;
    if (!this.hasMore) return;
    for await (const page of pagesOf(client, { conversationId: this.conversationId, before })) {
      if (this.oldest !== before) return; // Another branch may be shown by now.
      this.prepend(page);
      if (enough()) return;
      before = this.oldest;
    }
  }

  /** Removes an exchange that was rolled back. @param {string} turnId */
  remove(turnId) {
    this.#messages = this.#messages.filter((message) => message.turn_id !== turnId);
    for (const reply of this.#replies) if (reply.turnId === turnId) this.#replies.delete(reply);
  }

  /** The conversation's first words; null if they are not here. */
  get beginning() {
    if (this.hasMore || !this.loaded) return null;
    const [first] = this.items();
    return first?.interprets ? first.source : (first?.text ?? null);
  }

  /**
   * They are arranged again only if something moved. While a reply grows, only its own item is made again, however long the
   * conversation is.
   * @returns {Item[]} oldest first; another array if an item came, went or moved
   */
  items() {
    if (this.#moved()) this.#arrange();
    else for (const [reply, { index, message }] of this.#open) this.#items[index] = message === undefined ? liveAnswer(reply) : kept(message, reply);
    return this.#items;
  }

  #moved() {
    if (this.#messages !== this.#arranged || this.#replies.size !== this.#stood.size) return true;
    for (const reply of this.#replies) if (this.#stood.get(reply) !== standing(reply)) return true;
    // A reply that is shown in another's item can't be made again alone.
    return [...this.#open.values()].some(({ index }) => index === -1);
  }

  #arrange() {
    const [messages, replies] = [(this.#arranged = this.#messages), [...this.#replies]];
    this.#items = arrange(messages, replies);
    this.#stood = new Map(replies.map((reply) => [reply, standing(reply)]));
    const placeOf = (/** @type {Reply} */ reply) => ({
      index: this.#items.findLastIndex(({ key }) => key === answerKey(reply)),
      message: messages.findLast(({ role, turn_id: turn }) => role === "assistant" && turn === reply.turnId),
    });
    this.#open = new Map(replies.filter((reply) => reply.open).map((reply) => [reply, placeOf(reply)]));
  }

  /**
   * Forgets replies that the history has whole, or that are on another branch. Messages that the server did not take stay, as
   * unsent. A running turn is always on the active branch.
   * @param {{messages: Message[], seq: number}} known
   */
  #forgetStored({ messages, seq }) {
    const answered = new Set(messages.filter(({ role }) => role === "assistant").map((message) => message.turn_id));
    for (const reply of this.#replies) {
      const lost = reply.state === ReplyState.WITHDRAWN && reply.turnId !== null;
      // If its calls were open when this page came, its `done` did not come here.
      const stored = reply.done === null ? reply.state === ReplyState.ENDED : reply.done.seq <= seq;
      const elsewhere = stored && !answered.has(reply.turnId ?? "");
      if (lost || elsewhere) this.#replies.delete(reply);
    }
  }
}

/** @param {Reply | undefined} reply @returns {string | null} */
function requestedModel(reply) {
  return reply?.done?.requested_model ?? reply?.done?.model ?? null;
}

/** Messages of a page: the most that the service gives. */
export const PAGE = 200;

/**
 * Pages of a conversation's history, newest first, until there are no older ones. Raises ChatError.
 * @param {import("../../client/chat-client.js").ChatClient} client
 * @param {object} options
 * @param {string} options.conversationId
 * @param {string} [options.before]  a message, for the pages before it; without it, from the end of the active branch
 * @returns {AsyncGenerator<History, void, void>}
 */
export async function* pagesOf(client, { conversationId, before }) {
  for (;;) {
    const page = await client.history({ conversationId, before, limit: PAGE });
    yield page;
    if (!page.has_more || page.messages.length === 0) return;
    before = page.messages[0].message_id;
  }
}

/** The transcripts of the conversations of this visit. */
export class Transcripts {
  /** @type {Map<string, Transcript>} */
  #byConversation = new Map();
  /** @type {Transcript | null} The newest conversation that was begun here. */ #fresh = null;

  /** @param {string} conversationId */
  of(conversationId) {
    let transcript = this.#byConversation.get(conversationId);
    if (transcript === undefined) {
      transcript = new Transcript(conversationId);
      this.#byConversation.set(conversationId, transcript);
    }
    return transcript;
  }

  /** The transcript of an empty conversation: the last one, with its draft, if it is still empty. */
  fresh() {
    if (this.#fresh === null || this.#fresh.items().length > 0) {
      this.#fresh = this.of(randomId());
      this.#fresh.empty();
    }
    return this.#fresh;
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.#byConversation.delete(conversationId);
    if (this.#fresh?.conversationId === conversationId) this.#fresh = null;
  }
}
