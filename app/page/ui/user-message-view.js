import { ReplyState } from "../client/reply.js";
import { BranchArrows } from "./branch-arrows.js";
import { element, icon } from "./dom.js";
import { EditBox } from "./edit-box.js";
import { wordsFor } from "./words.js";

/** @typedef {import("./arrangement.js").Item} Item */
/**
 * @typedef {object} MessageActions
 * @property {(item: Item) => void} onRetry                  a message that was not taken is to be sent again
 * @property {(item: Item, text: string) => void} onEdit     a message is to be said otherwise
 * @property {(item: Item) => void} onRegenerate             a reply is to be made anew
 * @property {(messageId: string) => void} onBranch          the branch of another version is to be shown
 */

/** A message of the user: plain text, as typed; a box to edit it in; and what became of it where the server did not take it. */
export class UserMessageView {
  #text = element("div", { class: "bubble", dir: "auto" });
  #trouble = element("div", { class: "trouble", hidden: true });
  #edit = element("button", { class: "quiet edit-button", type: "button", "aria-label": "Edit this message", title: "Edit" }, icon("edit"));
  /** @type {EditBox | null} */ #box = null;
  #actions;
  #told = "";
  /** @type {Item | null} */ #item = null;

  /** @param {MessageActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.arrows = new BranchArrows(actions.onBranch);
    this.#edit.addEventListener("click", () => this.#open());
    const name = element("h2", { class: "visually-hidden", text: "You" });
    const tools = element("div", { class: "tools" }, this.arrows.root, this.#edit);
    this.root = element("article", { class: "message user" }, name, this.#text, this.#trouble, tools);
  }

  /** @param {Item} item */
  show(item) {
    this.#item = item;
    if (this.#text.textContent !== item.text) this.#text.textContent = item.text;
    this.#edit.hidden = item.messageId === null;
    this.arrows.show(item);
    this.#showTrouble(item);
  }

  /** @param {Item} item */
  #showTrouble(item) {
    const trouble = troubleOf(item);
    if (trouble === this.#told) return;
    this.#told = trouble;
    this.#trouble.hidden = trouble === "";
    this.#trouble.replaceChildren(icon("alert"), element("span", { text: trouble }), this.#retryButton(item));
  }

  /** @param {Item} item */
  #retryButton(item) {
    const button = element("button", { class: "link", type: "button", text: "Send again" });
    button.addEventListener("click", () => this.#actions.onRetry(item));
    return button;
  }

  #open() {
    if (this.#item === null || this.#box !== null) return;
    const onSend = (/** @type {string} */ text) => this.#item !== null && this.#actions.onEdit(this.#item, text);
    this.#box = new EditBox(this.#item.text, { onSend, onClose: () => this.#close() });
    this.root.classList.add("editing");
    this.#text.after(this.#box.root);
    this.#box.focus();
  }

  #close() {
    this.root.classList.remove("editing");
    this.#box?.root.remove();
    this.#box = null;
    this.#edit.focus();
  }
}

/** @param {Item} item */
function troubleOf({ status, reply }) {
  if (status === ReplyState.REFUSED && reply?.error) return wordsFor(reply.error);
  return status === ReplyState.WITHDRAWN ? "Not sent." : "";
}
