import { element } from "../elements/dom.js";
import { SizeNote, textOf } from "../writing/size-note.js";
import { isSubmit } from "../writing/typing.js";
import { t } from "../words/translate.js";

/** A box to edit a message in. Calls `onSend` with the text, and `onClose` when it is closed. */
export class EditBox {
  #field = element("textarea", { "aria-label": t("Your message, edited"), rows: 1 });
  #size;
  #actions;

  /**
   * @param {string} text
   * @param {{onSend: (text: string) => void, onClose: () => void, limits: () => import("../writing/message-size.js").Limits | null}} actions
   */
  constructor(text, actions) {
    this.#actions = actions;
    this.#field.value = text;
    this.#size = new SizeNote(this.#field, actions.limits);
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    const send = element("button", { class: "go", type: "submit", text: t("Send") });
    const close = element("button", { class: "plain", type: "button", text: t("Cancel"), onclick: () => actions.onClose() });
    const buttons = element("div", { class: "edit-buttons" }, close, send);
    this.root = element("form", { class: "edit", "aria-label": t("Edit your message") }, this.#field, this.#size.root, buttons);
    this.root.addEventListener("submit", (event) => this.#submit(event));
  }

  focus() {
    this.#size.fits();
    this.#field.focus();
    this.#field.setSelectionRange(this.#field.value.length, this.#field.value.length);
  }

  /** @param {Event} event */
  #submit(event) {
    event.preventDefault();
    const text = textOf(this.#field.value);
    if (text === "" || !this.#size.fits()) return;
    this.#actions.onClose();
    this.#actions.onSend(text);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (isSubmit(event)) this.#submit(event);
    if (event.key !== "Escape" || event.isComposing) return;
    // Esc stops a running reply if there is nothing else to close.
    event.preventDefault();
    this.#actions.onClose();
  }
}
