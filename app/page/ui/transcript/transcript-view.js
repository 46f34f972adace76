import { ReplyView } from "../replies/reply-view.js";
import { UserMessageView } from "./user-message-view.js";

/** @typedef {import("./arrangement.js").Item} Item */

/** Shows the items of a transcript, each in an element that stays for as long as its item does. */
export class TranscriptView {
  /** @type {Map<string, UserMessageView | ReplyView>} */
  #views = new Map();
  /** @type {Item[]} */ #items = [];
  #root;
  #actions;

  /**
   * @param {HTMLElement} root
   * @param {import("./user-message-view.js").MessageActions} actions
   */
  constructor(root, actions) {
    this.#root = root;
    this.#actions = actions;
  }

  /** @param {Item[]} items */
  show(items) {
    this.#items = items;
    this.#forget(new Set(items.map(({ key }) => key)));
    items.forEach((item, index) => {
      const view = this.#viewOf(item);
      view.show(item);
      const there = this.#root.children[index] ?? null;
      if (there !== view.root) this.#root.insertBefore(view.root, there);
    });
  }

  /** How many code points of a reply are on the screen. @param {string} key */
  shownChars(key) {
    const view = this.#views.get(key);
    return view instanceof ReplyView ? view.shownChars : 0;
  }

  /** Gives the focus to the arrows of a message: those that were pressed went with the version before. @param {string} messageId */
  focusArrows(messageId) {
    const key = this.#items.find((item) => item.messageId === messageId)?.key;
    this.#views.get(key ?? "")?.arrows.focus();
  }

  /** Brings a message into view, and lets it be seen which one it is. @param {string} messageId */
  reveal(messageId) {
    const root = this.#views.get(this.#items.find((item) => item.messageId === messageId)?.key ?? "")?.root;
    root?.scrollIntoView({ block: "center" });
    root?.classList.add("found");
    root?.addEventListener("animationend", () => root.classList.remove("found"), { once: true });
  }

  /** @param {Set<string>} keys */
  #forget(keys) {
    for (const [key, view] of this.#views) {
      if (keys.has(key)) continue;
      view.root.remove();
      this.#views.delete(key);
    }
  }

  /** @param {Item} item */
  #viewOf(item) {
    let view = this.#views.get(item.key);
    if (view === undefined) {
      view = item.role === "user" ? new UserMessageView(this.#actions) : new ReplyView(this.#actions);
      this.#views.set(item.key, view);
    }
    return view;
  }
}
