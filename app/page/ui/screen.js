import { LinkState } from "../client/link.js";
import { element, part } from "./elements/dom.js";
import { NEW_TITLE } from "./conversations/sidebar.js";
import { PageTitle } from "./page-title.js";
import { Follow } from "./scrolling/follow.js";
import { TranscriptView } from "./transcript/transcript-view.js";
import { t } from "./words/translate.js";

/** @typedef {import("./transcript/transcript.js").Transcript} Transcript */

/** The title of a conversation that is not listed, and whose first message is not here. */
const UNKNOWN_TITLE = t("Conversation");
/** How long a found message is marked. */
const FOUND_MS = 4_000;
/** Older messages are asked for when fewer heights of the view are above it. */
const NEAR_VIEWS = 2;

/** Shows one conversation, at most once a frame. */
export class Screen {
  /** The shown conversation. */
  current;
  /** The title of the page. */
  title = new PageTitle();
  #parts;
  #frameRequested = false;
  #scroller = part("scroller", HTMLElement);
  #jump = part("jump", HTMLButtonElement);
  #view;
  #welcome = part("welcome", HTMLElement);
  #follow = new Follow(this.#scroller, (following) => (this.#jump.hidden = following));
  /** Asks for older messages. It is for the keyboard, and after failures: they are loaded when the reader comes near the first one. */
  #older = part("older", HTMLButtonElement);
  /** @type {Set<Transcript>} Transcripts whose page of older messages is awaited. */ #loading = new Set();
  /** @type {Set<Transcript>} Transcripts whose last page failed: the user asks for it again. */ #failed = new Set();

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {import("./elements/notices.js").Notices} parts.notices
   * @param {(conversationId: string) => string | undefined} parts.titleOf  in the list
   * @param {Transcript} parts.current
   * @param {import("./message-actions.js").MessageActions} parts.actions
   * @param {(title: string | null) => void} parts.onShown  the conversation's title; null if nothing was said in it
   */
  constructor(parts) {
    const { actions } = (this.#parts = parts);
    this.current = parts.current;
    this.#view = new TranscriptView({ scroller: this.#scroller, root: part("messages", HTMLElement), follow: this.#follow, actions });
    this.#older.addEventListener("click", () => void this.#loadOlder(this.current));
    this.#jump.addEventListener("click", () => this.toEnd());
    this.#scroller.addEventListener("scroll", () => this.#onScroll(), { passive: true });
  }

  /** The replies of the shown conversation that can be stopped. */
  get running() {
    return this.#parts.client.repliesOf(this.current.conversationId).filter((reply) => !reply.stopping && !reply.unsure);
  }

  /** How many code points of a reply are on the screen. @param {import("../client/reply.js").Reply} reply */
  shownChars(reply) {
    const item = this.current.items().findLast((one) => one.role === "assistant" && one.reply === reply);
    return item === undefined ? 0 : this.#view.shownChars(item.key);
  }

  /** Shows the messages again, as their buttons may have changed. */
  renew() {
    this.#view.renew();
    this.ask();
  }

  /** Asks for one `show` in the next frame. */
  ask() {
    if (this.#frameRequested) return;
    this.#frameRequested = true;
    requestAnimationFrame(() => {
      this.#frameRequested = false;
      this.show();
    });
  }

  /** Takes what the service says about itself on a new connection. @param {import("../client/frames.js").Ready} ready */
  know({ suggestions = [] }) {
    const list = part("suggestions", HTMLUListElement);
    list.hidden = suggestions.length === 0;
    const button = (/** @type {string} */ text) => element("button", { type: "button", text, dir: "auto", onclick: () => this.#parts.actions.send(text) });
    list.replaceChildren(...suggestions.map((text) => element("li", {}, button(text))));
    this.#failed.clear(); // on a new connection they may be asked for again
    this.renew();
  }

  /** Goes to the end of the conversation, and stays there while it grows. */
  toEnd() {
    this.#follow.following = true;
    this.#view.place();
  }

  /** Brings a message into view, and marks it. @param {string} messageId */
  showMessage(messageId) {
    this.show();
    const root = this.#view.reveal(messageId);
    root?.focus({ preventScroll: true });
    root?.classList.add("found");
    setTimeout(() => root?.classList.remove("found"), FOUND_MS);
  }

  /** Shows another version of a message, and keeps the focus at its arrows. @param {string} messageId */
  showVersion(messageId) {
    this.show();
    this.#view.focusArrows(messageId);
  }

  show() {
    const items = this.current.items();
    this.#welcome.hidden = items.length > 0 || !this.current.loaded;
    const { conversationId, beginning } = this.current;
    // From the list, else its beginning, if that is here.
    const title = this.#parts.titleOf(conversationId) || beginning || (items.length > 0 ? UNKNOWN_TITLE : NEW_TITLE);
    this.title.show(title === NEW_TITLE || title === UNKNOWN_TITLE ? "" : title, title);
    // What takes up room around the messages comes first; they are placed in the rest.
    this.#parts.onShown(items.length > 0 ? title : null);
    this.#showOlder();
    this.#view.show(items, this.current);
    this.#look();
  }

  #onScroll() {
    this.#follow.scrolled();
    this.#view.place();
    this.#look();
  }

  /** Loads older messages if the reader is near the first one. */
  #look() {
    if (this.#scroller.scrollTop >= NEAR_VIEWS * this.#scroller.clientHeight) return;
    const connected = this.#parts.client.connection.state === LinkState.CONNECTED;
    if (connected && this.current.hasMore && !this.#failed.has(this.current)) void this.#loadOlder(this.current);
  }

  /** Shows whether there are older messages. */
  #showOlder() {
    const loading = this.#loading.has(this.current);
    if (!this.current.hasMore && document.activeElement === this.#older) this.#scroller.focus();
    this.#older.hidden = !this.current.hasMore;
    this.#older.setAttribute("aria-disabled", String(loading));
    const word = loading ? t("Loading earlier messages") : t("Show earlier messages");
    if (this.#older.textContent !== word) this.#older.textContent = word;
  }

  /** @param {Transcript} transcript */
  async #loadOlder(transcript) {
    if (this.#loading.has(transcript)) return;
    this.#loading.add(transcript);
    this.#showOlder();
    const { oldest } = transcript;
    await this.#parts.notices.answer(transcript.readOlder(this.#parts.client, () => true));
    this.#loading.delete(transcript);
    if (transcript.hasMore && transcript.oldest === oldest) this.#failed.add(transcript);
    else this.#failed.delete(transcript);
    this.show();
  }
}
