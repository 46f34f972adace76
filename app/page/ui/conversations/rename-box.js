import { element } from "../elements/dom.js";
import { t } from "../words/translate.js";

/** Of a title, in code points; `maxlength` counts UTF-16 units, which are no fewer. */
const MAX_CHARS = 200;

/** Where a title is written in the place of the old one. Enter keeps it, Esc and leaving keep the old one. */
export class RenameBox {
  #field = element("input", { type: "text", maxlength: MAX_CHARS, "aria-label": t("Title"), autocomplete: "off", dir: "auto" });
  root = element("form", { class: "rename" }, this.#field);
  #before;
  #onClose;
  #closed = false;

  /**
   * @param {string} title
   * @param {{onClose: (title: string | null) => void}} actions  null where the title stays as it is
   */
  constructor(title, { onClose }) {
    this.#before = title;
    this.#onClose = onClose;
    this.#field.value = title;
    this.root.addEventListener("submit", (event) => this.#submit(event));
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    this.#field.addEventListener("blur", () => this.#close(null));
  }

  focus() {
    this.#field.focus();
    this.#field.select();
  }

  /** @param {Event} event */
  #submit(event) {
    event.preventDefault();
    const title = this.#field.value.trim();
    this.#close(title === "" || title === this.#before ? null : title);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== "Escape" || event.isComposing) return;
    // Esc stops a running reply where nothing else is to be closed.
    event.preventDefault();
    this.#close(null);
  }

  /** @param {string | null} title */
  #close(title) {
    if (this.#closed) return;
    this.#closed = true;
    this.#onClose(title);
  }
}
