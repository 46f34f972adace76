import { element, icon, part } from "../elements/dom.js";
import { addressOf } from "./address.js";

/** @typedef {{id: string, title: string, running: boolean}} Entry */

/** The list of conversations: links to switch with (so that the browser's history works), buttons to delete with. */
export class ConversationList {
  #root = part("conversations", HTMLUListElement);
  #more = part("more", HTMLButtonElement);
  #onDelete;
  #shown = "";

  /** @param {{onDelete: (entry: Entry) => void, onMore: () => void}} actions */
  constructor({ onDelete, onMore }) {
    this.#onDelete = onDelete;
    this.#more.addEventListener("click", onMore);
  }

  /**
   * @param {Entry[]} entries
   * @param {{current: string, hasMore: boolean}} state
   */
  show(entries, { current, hasMore }) {
    this.#more.hidden = !hasMore;
    const key = JSON.stringify([entries, current]);
    if (key === this.#shown) return;
    this.#shown = key;
    const focused = focusedAddress();
    this.#root.replaceChildren(...entries.map((entry) => this.#row(entry, entry.id === current)));
    if (focused !== null) refocus(this.#root, focused);
  }

  /**
   * @param {Entry} entry
   * @param {boolean} current
   */
  #row(entry, current) {
    const link = element("a", { href: addressOf(entry.id), "aria-current": current ? "page" : null, dir: "auto" });
    link.append(element("span", { class: "name", text: entry.title }));
    if (entry.running) link.append(element("span", { class: "running", role: "img", "aria-label": "A reply is running" }));
    const remove = element("button", { class: "quiet delete", type: "button", "aria-label": `Delete “${entry.title}”` });
    remove.append(icon("trash"));
    remove.addEventListener("click", () => this.#onDelete(entry));
    return element("li", {}, link, remove);
  }
}

function focusedAddress() {
  const focused = document.activeElement;
  return focused instanceof HTMLAnchorElement ? focused.getAttribute("href") : null;
}

/**
 * @param {HTMLElement} root
 * @param {string} address
 */
function refocus(root, address) {
  const link = [...root.querySelectorAll("a")].find((candidate) => candidate.getAttribute("href") === address);
  link?.focus();
}
