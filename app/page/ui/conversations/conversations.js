import { titleInWords } from "../words/languages.js";
import { t } from "../words/translate.js";

/** @typedef {import("../../client/frames.js").ConversationSummary} ConversationSummary */

/** The name of a conversation without a title. */
export const NEW_TITLE = t("New conversation");

const PAGE = 100;

/** The owner's conversations as the server lists them, newest first, those of other devices too. */
export class Conversations {
  /** @type {ConversationSummary[]} */
  entries = [];
  /** Whether there are older ones than `entries`. */
  hasMore = false;
  #client;
  #refreshing = false;
  #stale = false;

  /** @param {import("../../client/chat-client.js").ChatClient} client */
  constructor(client) {
    this.#client = client;
  }

  /** @param {string} conversationId */
  has(conversationId) {
    return this.entries.some(({ conversation_id: id }) => id === conversationId);
  }

  /** A conversation's title in words; undefined if it is unknown. @param {string} conversationId */
  titleOf(conversationId) {
    const listed = this.entries.find(({ conversation_id: id }) => id === conversationId);
    return listed === undefined ? undefined : titleInWords(listed);
  }

  /** Asks for the newest ones. Calls that come while an answer is awaited share the next one. Raises ChatError. */
  async refresh() {
    this.#stale = true;
    if (this.#refreshing) return;
    this.#refreshing = true;
    try {
      while (this.#stale) {
        this.#stale = false;
        this.#takeNewest(await this.#client.conversations({ limit: PAGE }));
      }
    } finally {
      this.#refreshing = false;
    }
  }

  /** Asks for older ones. Raises ChatError. */
  async more() {
    const before = this.entries.at(-1)?.conversation_id;
    const page = await this.#client.conversations({ limit: PAGE, before });
    this.entries = [...this.entries, ...page.conversations];
    this.hasMore = page.has_more;
  }

  /** Gives a conversation another title. Raises ChatError. @param {string} conversationId @param {string} title */
  async rename(conversationId, title) {
    const renamed = await this.#client.rename({ conversationId, title });
    this.entries = this.entries.map((entry) => (entry.conversation_id === conversationId ? renamed : entry));
  }

  /** Takes the title that the model wrote. @param {string} conversationId @param {string} title */
  entitle(conversationId, title) {
    this.entries = this.entries.map((entry) => (entry.conversation_id === conversationId ? { ...entry, title, interprets: undefined } : entry));
  }

  /** @param {string} conversationId */
  remove(conversationId) {
    this.entries = this.entries.filter(({ conversation_id: id }) => id !== conversationId);
  }

  /** @param {import("../../client/frames.js").Conversations} page */
  #takeNewest({ conversations, has_more: hasMore }) {
    const newest = new Set(conversations.map(({ conversation_id: id }) => id));
    const older = hasMore ? this.entries.filter(({ conversation_id: id }) => !newest.has(id)) : [];
    this.hasMore = older.length > 0 ? this.hasMore : hasMore;
    this.entries = [...conversations, ...older];
  }
}
