import { part } from "./elements/dom.js";
import { ConversationList } from "./conversations/conversation-list.js";
import { PageTitle } from "./page-title.js";
import { Follow } from "./scrolling/follow.js";
import { TranscriptView } from "./transcript/transcript-view.js";
import { Welcome } from "./transcript/welcome.js";
import { t } from "./words/translate.js";

/** @typedef {import("./transcript/transcript.js").Transcript} Transcript */
/** @typedef {import("./conversations/conversation-list.js").ListActions} ListActions */
/**
 * @typedef {object} ScreenActions
 * @property {(text: string) => void} onSend
 * @property {() => void} onNear                             the reader is near the first message that is here
 */

const NEW_TITLE = t("New conversation");
/** Of one that is not among the listed, and whose first message is not here. */
const UNKNOWN_TITLE = t("Conversation");
/** For so long it is to be seen which message was found. */
const FOUND_MS = 4_000;
/** From so many heights of the view on, older messages are asked for. */
const NEAR_VIEWS = 2;

/** Shows one conversation and the list of all, at most once a frame. */
export class Screen {
  /** The conversation that is shown. */
  current;
  #client;
  #conversations;
  #frameAsked = false;
  #title = new PageTitle();
  #scroller = part("scroller", HTMLElement);
  #jump = part("jump", HTMLButtonElement);
  #view;
  #list;
  #welcome;
  #follow = new Follow(this.#scroller, (following) => (this.#jump.hidden = following));
  #onShown;
  #onNear;

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
    this.#onNear = actions.onNear;
    this.#view = new TranscriptView({ scroller: this.#scroller, root: part("messages", HTMLElement), follow: this.#follow, actions });
    this.#list = new ConversationList(actions);
    this.#welcome = new Welcome({ onChoose: actions.onSend });
    this.#jump.addEventListener("click", () => this.toEnd());
    this.#scroller.addEventListener("scroll", () => this.#onScroll(), { passive: true });
  }

  /** The title of the page. */
  get title() {
    return this.#title;
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
    });
  }

  /** What an empty conversation may begin with. @param {string[]} texts */
  suggest(texts) {
    this.#welcome.suggest(texts);
  }

  /** Goes to the end of the conversation, and stays there while it grows. */
  toEnd() {
    this.#follow.resume();
    this.#view.place();
  }

  /** Brings a message into view, and shows which one it is. @param {string} messageId */
  showMessage(messageId) {
    this.show();
    const root = this.#view.reveal(messageId);
    root?.focus({ preventScroll: true });
    root?.classList.add("found");
    setTimeout(() => root?.classList.remove("found"), FOUND_MS);
  }

  /** Shows another version of a message, and leaves the focus at its arrows. @param {string} messageId */
  showVersion(messageId) {
    this.show();
    this.#view.focusArrows(messageId);
  }

  show() {
    const items = this.current.items();
    this.#welcome.show(items.length === 0 && this.current.loaded);
    this.#onShown(items.length > 0);
    this.#view.show(items, this.current);
    const title = this.#titleOf(this.current, items.length);
    this.#title.show(title === NEW_TITLE || title === UNKNOWN_TITLE ? "" : title, title);
    this.#showList(items.length > 0 ? title : null);
    this.#look();
  }

  #onScroll() {
    this.#follow.scrolled();
    this.#view.place();
    this.#look();
  }

  #look() {
    if (this.#scroller.scrollTop < NEAR_VIEWS * this.#scroller.clientHeight) this.#onNear();
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
   * The list knows it; before that has it, what the conversation began with, where that is here.
   * @param {Transcript} transcript
   * @param {number} count
   */
  #titleOf({ conversationId, beginning }, count) {
    return this.#conversations.titleOf(conversationId) || beginning || (count > 0 ? UNKNOWN_TITLE : NEW_TITLE);
  }
}
