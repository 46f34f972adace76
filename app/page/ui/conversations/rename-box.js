import { element } from "../elements/dom.js";
import { t } from "../words/translate.js";

/** The longest title, in code points. `maxlength` counts UTF-16 units, which are at least as many. */
const MAX_CHARS = 200;

/** A box to edit a title in its place. Enter and leaving the box keep the new title, Esc keeps the old one. */
export class RenameBox {
  #field = element("input", { type: "text", maxlength: MAX_CHARS, "aria-label": t("Title"), autocomplete: "off", dir: "auto" });
  root = element("form", { class: "rename" }, this.#field);
  #before;
  #onClose;
  #closed = false;

  /**
   * @param {string} title
   * @param {object} actions
   * @param {(title: string | null, by: {key: boolean}) => void} actions.onClose  `title`: null if it stays as it is; `key`: whether a key closed the box
   */
  constructor(title, { onClose }) {
    this.#before = title;
    this.#onClose = onClose;
    this.#field.value = title;
    this.root.addEventListener("submit", (event) => this.#submit(event));
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    this.#field.addEventListener("blur", () => this.#close(this.#title, { key: false }));
  }

  focus() {
    this.#field.focus();
    this.#field.select();
  }

  /** @param {Event} event */
  #submit(event) {
    event.preventDefault();
    this.#close(this.#title, { key: true });
  }

  /** The new title; null if there is none. */
  get #title() {
    const title = this.#field.value.trim();
    return title === "" || title === this.#before ? null : title;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== "Escape" || event.isComposing) return;
    // Esc stops a running reply if there is nothing else to close.
    event.preventDefault();
    this.#close(null, { key: true });
  }

  /** @param {string | null} title @param {{key: boolean}} by */
  #close(title, by) {
    if (this.#closed) return;
    this.#closed = true;
    this.#onClose(title, by);
  }
}
