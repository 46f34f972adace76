import { part } from "./elements/dom.js";
import { ConversationList } from "./conversations/conversation-list.js";
import { Follow } from "./transcript/follow.js";
import { TranscriptView } from "./transcript/transcript-view.js";
import { Welcome } from "./transcript/welcome.js";

/** @typedef {import("./transcript/transcript.js").Transcript} Transcript */
/** @typedef {import("./transcript/arrangement.js").Item} Item */
/** @typedef {import("./conversations/conversation-list.js").ListActions} ListActions */
/**
 * @typedef {object} ScreenActions
 * @property {(text: string) => void} onSend
 */

const NEW_TITLE = "New conversation";

/** Shows one conversation and the list of all, at most once a frame. */
export class Screen {
  /** The conversation that is shown. */
  current;
  #client;
  #conversations;
  #frameAsked = false;
  #title = part("title", HTMLElement);
  #older = part("older", HTMLButtonElement);
  #jump = part("jump", HTMLButtonElement);
  #view;
  #list;
  #welcome;
  #follow = new Follow(part("scroller", HTMLElement), (following) => (this.#jump.hidden = following));
  #onShown;

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {import("./conversations/conversations.js").Conversations} parts.conversations
   * @param {Transcript} parts.current
   * @param {ScreenActions & ListActions & import("./transcript/user-message-view.js").MessageActions} parts.actions
   * @param {(anything: boolean) => void} parts.onShown  whether the conversation has a message
   */
  constructor({ client, conversations, current, actions, onShown }) {
    this.#client = client;
    this.#conversations = conversations;
    this.current = current;
    this.#onShown = onShown;
    this.#view = new TranscriptView(part("messages", HTMLElement), actions);
    this.#list = new ConversationList(actions);
    this.#welcome = new Welcome({ onChoose: actions.onSend });
    this.#jump.addEventListener("click", () => this.#follow.resume());
  }

  /** The replies of the shown conversation that can be stopped. */
  get running() {
    return this.#client.repliesOf(this.current.conversationId).filter((reply) => !reply.stopping);
  }

  /** How many code points of a reply are on the screen. @param {import("../client/reply.js").Reply} reply */
  shownChars(reply) {
    const item = this.current.items().findLast((one) => one.role === "assistant" && one.reply === reply);
    return item === undefined ? 0 : this.#view.shownChars(item.key);
  }

  /** Asks for one showing in the next frame. */
  ask() {
    if (this.#frameAsked) return;
    this.#frameAsked = true;
    requestAnimationFrame(() => {
      this.#frameAsked = false;
      this.show();
      this.#follow.keep();
    });
  }

  /** What an empty conversation may begin with. @param {string[]} texts */
  suggest(texts) {
    this.#welcome.suggest(texts);
  }

  /** Goes to the end of the conversation, and stays there while it grows. */
  toEnd() {
    this.#follow.resume();
  }

  /** Shows what changed above the view without moving what is being read. */
  showInPlace() {
    this.#follow.holdPlace(() => this.show());
  }

  /** Brings a message into view, and shows which one it is. @param {string} messageId */
  showMessage(messageId) {
    this.show();
    this.#view.reveal(messageId);
  }

  /** Shows another version of a message, and leaves the focus at its arrows. @param {string} messageId */
  showVersion(messageId) {
    this.showInPlace();
    this.#view.focusArrows(messageId);
  }

  show() {
    const items = this.current.items();
    this.#view.show(items);
    this.#welcome.show(items.length === 0 && this.current.loaded);
    this.#older.hidden = !this.current.hasMore;
    const title = this.#titleOf(this.current, items);
    this.#title.textContent = title;
    document.title = title === NEW_TITLE ? "Midstream" : `${title} · Midstream`;
    this.#showList(items.length > 0 ? title : null);
    this.#onShown(items.length > 0);
  }

  /** @param {string | null} title  of the current conversation; null where it is still empty */
  #showList(title) {
    const current = this.current.conversationId;
    const entries = this.#conversations.entries.map(({ conversation_id: id, title: name }) => this.#entry(id, name));
    if (title !== null && !this.#conversations.has(current)) entries.unshift(this.#entry(current, title));
    this.#list.show(entries, { current, hasMore: this.#conversations.hasMore });
  }

  /**
   * @param {string} id
   * @param {string} title
   */
  #entry(id, title) {
    return { id, title: title || NEW_TITLE, running: this.#client.repliesOf(id).length > 0 };
  }

  /**
   * @param {Transcript} transcript
   * @param {Item[]} items
   */
  #titleOf({ conversationId }, items) {
    const listed = this.#conversations.entries.find(({ conversation_id: id }) => id === conversationId);
    return listed?.title || items[0]?.text || NEW_TITLE;
  }
}
