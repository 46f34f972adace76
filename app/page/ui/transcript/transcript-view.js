import { countCodePoints } from "../../client/code-points.js";
import { ReplyView } from "../replies/reply-view.js";
import { VirtualList } from "../scrolling/virtual-list.js";
import { UserMessageView } from "./user-message-view.js";

/** @typedef {import("./arrangement.js").Item} Item */
/** @typedef {{view: UserMessageView | ReplyView, item: Item}} Shown */

/** The most views that are kept outside the document because the reader has opened a part of them. */
const RESTING = 30;
/** For guessed sizes, in px: around a text, of a line, a character and a row of images; and the nodes of every message. */
const GUESS = { frame: 72, line: 26, char: 7.5, nodes: 30, charsPerNode: 20, pictures: 250 };

/** Shows the items of a transcript near the view. Each has an element that stays while it is near. */
export class TranscriptView {
  /** @type {Map<string, Shown>} The views in the document. */ #shown = new Map();
  /** @type {Map<string, Shown>} Views in which something was opened. */ #resting = new Map();
  /** @type {Item[]} */ #items = [];
  #hasMore = false;
  /** Whether all views in the document are updated next, though their items are the same. */
  #stale = false;
  #scroller;
  #root;
  #list;
  #actions;

  /**
   * @param {object} parts
   * @param {HTMLElement} parts.scroller
   * @param {HTMLElement} parts.root
   * @param {import("../scrolling/follow.js").Follow} parts.follow
   * @param {import("./user-message-view.js").MessageActions} parts.actions
   */
  constructor({ scroller, root, follow, actions }) {
    this.#scroller = scroller;
    this.#root = root;
    this.#actions = actions;
    const source = {
      element: (/** @type {number} */ index) => this.#elementOf(index),
      dropped: (/** @type {string} */ key) => this.#rest(key),
      guess: (/** @type {number} */ index) => guess(this.#items[index], scroller.clientWidth),
    };
    this.#list = new VirtualList({ scroller, root, follow, source });
    scroller.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /**
   * @param {Item[]} items  another array if an item came, went or moved
   * @param {{hasMore: boolean}} transcript  whether there are older messages
   */
  show(items, { hasMore }) {
    this.#root.hidden = items.length === 0; // A feed without articles is invalid.
    const moved = items !== this.#items || hasMore !== this.#hasMore;
    [this.#items, this.#hasMore] = [items, hasMore];
    if (moved) this.#list.arrange(items.map(({ key }) => key));
    for (const index of this.#list.indices) this.#update(index, { moved });
    this.#stale = false;
    this.#list.place();
  }

  /** Updates all views next: their buttons may have changed, as with another model. */
  renew() {
    this.#stale = true;
  }

  /** Call when the view was scrolled, or has to go to the end. */
  place() {
    this.#list.scrolled();
  }

  /** How many code points of a reply are on the screen, or would be if it were scrolled there. @param {string} key */
  shownChars(key) {
    const view = this.#shown.get(key)?.view;
    if (view instanceof ReplyView) return view.shownChars;
    return countCodePoints(this.#items.findLast((item) => item.key === key)?.text ?? "");
  }

  /** Focuses the arrows of a message, since those that were pressed left with the version before. @param {string} messageId */
  focusArrows(messageId) {
    const key = this.#items.findLast((item) => item.messageId === messageId)?.key;
    this.#shown.get(key ?? "")?.view.arrows.focus();
  }

  /** Brings a message into view; returns its element, or null if it is not here. @param {string} messageId */
  reveal(messageId) {
    const key = this.#items.findLast((item) => item.messageId === messageId || item.sourceId === messageId)?.key;
    return key === undefined ? null : this.#list.reveal(key);
  }

  /** @param {number} index */
  #elementOf(index) {
    const item = this.#items[index];
    const shown = this.#resting.get(item.key) ?? { view: this.#make(item), item };
    this.#resting.delete(item.key);
    this.#shown.set(item.key, shown);
    shown.view.show(item);
    shown.item = item;
    this.#count(index);
    return shown.view.root;
  }

  /** @param {Item} item */
  #make({ role }) {
    const view = role === "user" ? new UserMessageView(this.#actions) : new ReplyView(this.#actions);
    view.root.tabIndex = -1; // Each article of a feed can have the focus.
    return view;
  }

  /** @param {number} index @param {{moved: boolean}} change */
  #update(index, { moved }) {
    const item = this.#items[index];
    const shown = this.#shown.get(item.key);
    if (moved) this.#count(index);
    if (shown === undefined || (shown.item === item && !this.#stale)) return;
    shown.view.show(item);
    shown.item = item;
  }

  /** Tells its number among all to those who do not see it. @param {number} index */
  #count(index) {
    const root = this.#shown.get(this.#items[index].key)?.view.root;
    root?.setAttribute("aria-posinset", String(index + 1));
    root?.setAttribute("aria-setsize", String(this.#hasMore ? -1 : this.#items.length));
  }

  /** @param {string} key */
  #rest(key) {
    const shown = this.#shown.get(key);
    this.#shown.delete(key);
    // Whether the reader has opened a part of the message, or writes in it.
    if (shown === undefined || shown.view.root.querySelector("details[open], form") === null) return;
    this.#resting.set(key, shown);
    if (this.#resting.size <= RESTING) return;
    const [oldest] = this.#resting.keys();
    this.#resting.delete(oldest);
  }

  /** Home and End jump at once: items on the way would slow a smooth scroll down. @param {KeyboardEvent} event */
  #onKey(event) {
    const target = /** @type {Element} */ (event.target);
    const plain = !event.altKey && !event.shiftKey && !event.defaultPrevented;
    if (!plain || target.matches("input, textarea, pre, .table")) return;
    if (event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    if (event.key === "Home") this.#list.toStart();
    else this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }
}

/** @param {Item} item @param {number} width  of the view, in px */
function guess({ text: content, source, calls, attachments }, width) {
  const text = content.length < source.length ? source : content;
  const chars = Math.max(20, Math.min(width - 60, 720) / GUESS.char);
  const lines = Math.max(1, Math.ceil(text.length / chars)) + 4 * calls.length;
  const pictures = attachments.length === 0 ? 0 : GUESS.pictures;
  return { height: GUESS.frame + GUESS.line * lines + pictures, nodes: GUESS.nodes * (1 + calls.length) + Math.ceil(text.length / GUESS.charsPerNode) };
}
