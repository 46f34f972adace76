import { confirmDelete } from "../elements/confirm.js";
import { part } from "../elements/dom.js";
import { Drawer } from "../elements/drawer.js";
import { ConversationList } from "./conversation-list.js";
import { Conversations, NEW_TITLE } from "./conversations.js";
import { SearchBox } from "./search-box.js";
import { titleInWords } from "../words/languages.js";

/** The owner's conversations: lists, searches, begins, renames and deletes them. */
export class Sidebar {
  #client;
  #reporter;
  #conversations;
  #list;
  #drawer = new Drawer();
  #onChange;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../reporter.js").Reporter} parts.reporter
   * @param {() => void} parts.onNew     the user begins another conversation
   * @param {(hit: import("../../client/frames.js").Hit) => void} parts.onHit  the user chose a hit
   * @param {() => void} parts.onChange  the list has changed
   */
  constructor({ client, reporter, onNew, onHit, onChange }) {
    this.#client = client;
    this.#reporter = reporter;
    this.#onChange = onChange;
    this.#conversations = new Conversations(client);
    this.#list = new ConversationList({
      onRename: ({ id }, title) => void this.rename(id, title),
      onDelete: (entry) => void this.#delete(entry),
      onMore: () => void this.#answered(this.#conversations.more()),
    });
    new SearchBox({ find: (request) => reporter.answer(client.search(request)), onOpen: onHit });
    part("new", HTMLButtonElement).addEventListener("click", onNew);
  }

  /** Whether a conversation is listed. @param {string} conversationId */
  has(conversationId) {
    return this.#conversations.has(conversationId);
  }

  /** A conversation's title; undefined if it is unknown. @param {string} conversationId */
  titleOf(conversationId) {
    return this.#conversations.titleOf(conversationId);
  }

  /**
   * Shows the list.
   * @param {string} current        the conversation that is shown
   * @param {string | null} title  its title; null if it is still empty
   */
  show(current, title) {
    const entries = this.#conversations.entries.map((listed) => this.#entry(listed.conversation_id, titleInWords(listed)));
    if (title !== null && !this.has(current)) entries.unshift(this.#entry(current, title));
    this.#list.show(entries, { current, hasMore: this.#conversations.hasMore });
  }

  /** Asks for the newest conversations. */
  refresh() {
    return this.#answered(this.#conversations.refresh());
  }

  /** @param {string} conversationId @param {string} title */
  rename(conversationId, title) {
    return this.#answered(this.#conversations.rename(conversationId, title));
  }

  /** Takes the title that the model wrote. @param {string} conversationId @param {string} title */
  entitle(conversationId, title) {
    this.#conversations.entitle(conversationId, title);
  }

  /** Takes that a conversation is gone. @param {string} conversationId */
  remove(conversationId) {
    this.#conversations.remove(conversationId);
  }

  /** Closes the sidebar if it lies over the conversation. False if it doesn't. */
  close() {
    return this.#drawer.close();
  }

  /** @param {string} id @param {string} title */
  #entry(id, title) {
    return { id, title: title || NEW_TITLE, running: this.#client.repliesOf(id).length > 0 };
  }

  /** @param {import("./conversation-list.js").Entry} entry */
  async #delete({ id, title }) {
    if (await confirmDelete(title)) await this.#reporter.answer(this.#client.delete(id));
  }

  /** @param {Promise<unknown>} request */
  async #answered(request) {
    await this.#reporter.answer(request);
    this.#onChange();
  }
}
