import { ReplyView, UserMessageView } from "./message-view.js";

/** @typedef {import("./transcript.js").Item} Item */

/** Shows the items of a transcript, each in an element that stays for as long as its item does. */
export class TranscriptView {
  /** @type {Map<string, UserMessageView | ReplyView>} */
  #views = new Map();
  #root;
  #actions;

  /**
   * @param {HTMLElement} root
   * @param {{onRetry: (item: Item) => void}} actions
   */
  constructor(root, actions) {
    this.#root = root;
    this.#actions = actions;
  }

  /** @param {Item[]} items */
  show(items) {
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
      view = item.role === "user" ? new UserMessageView(this.#actions) : new ReplyView();
      this.#views.set(item.key, view);
    }
    return view;
  }
}
