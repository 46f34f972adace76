import { element, part } from "../elements/dom.js";
import { iconButton } from "../elements/icons.js";
import { addressOf } from "./address.js";
import { editTitle } from "./title-field.js";
import { t } from "../words/translate.js";

/** @typedef {{id: string, title: string, running: boolean}} Entry */
/**
 * @typedef {object} ListActions
 * @property {(entry: Entry) => void} onDelete
 * @property {(entry: Entry, title: string) => void} onRename
 * @property {() => void} onMore                              older conversations are asked for
 */

/** The list of conversations: links to switch (so the browser's history works), and buttons to rename and delete. */
export class ConversationList {
  #root = part("conversations", HTMLUListElement);
  #more = part("more", HTMLButtonElement);
  #actions;
  #shown = "";
  /** Whether a title is being edited; the list does not change meanwhile. */
  #renaming = false;

  /** @param {ListActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.#more.addEventListener("click", actions.onMore);
  }

  /**
   * @param {Entry[]} entries
   * @param {{current: string, hasMore: boolean}} state
   */
  show(entries, { current, hasMore }) {
    this.#more.hidden = !hasMore;
    const key = JSON.stringify([entries, current]);
    if (key === this.#shown || this.#renaming) return;
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
    if (entry.running) link.append(element("span", { class: "running", role: "img", "aria-label": t("A reply is running") }));
    const row = element("li", {}, link);
    const { title } = entry;
    const rename = iconButton("edit", t("Rename “{title}”", { title }), { onclick: () => this.#rename(entry, link) });
    const remove = iconButton("trash", t("Delete “{title}”", { title }), { onclick: () => this.#actions.onDelete(entry) });
    row.append(element("span", { class: "row-tools" }, rename, remove));
    return row;
  }

  /**
   * @param {Entry} entry
   * @param {HTMLElement} link
   */
  #rename(entry, link) {
    if (this.#renaming) return;
    this.#renaming = true;
    const onClose = (/** @type {string | null} */ title) => {
      this.#renaming = false;
      this.#shown = ""; // the next `show` shows what came meanwhile
      if (title !== null) this.#actions.onRename(entry, title);
    };
    editTitle(link, entry.title, { focus: link, onClose });
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
