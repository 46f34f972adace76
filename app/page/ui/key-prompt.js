import { part } from "./dom.js";

/** Asks for the key that the service wants. Calls `onKey` with it, and whether it is to be kept for later visits. */
export class KeyPrompt {
  #dialog = part("key-prompt", HTMLDialogElement);
  #why = part("key-why", HTMLElement);
  #field = part("key-field", HTMLInputElement);
  #forGood = part("key-for-good", HTMLInputElement);
  #onKey;

  /** @param {{onKey: (key: string, forGood: boolean) => void}} actions */
  constructor({ onKey }) {
    this.#onKey = onKey;
    part("key-form", HTMLFormElement).addEventListener("submit", (event) => this.#submit(event));
    part("key-later", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
  }

  /** @param {string} why */
  ask(why) {
    this.#why.textContent = why;
    if (this.#dialog.open) return;
    this.#field.value = "";
    this.#dialog.showModal();
  }

  close() {
    this.#dialog.close();
  }

  /** @param {Event} event */
  #submit(event) {
    event.preventDefault();
    const key = this.#field.value.trim();
    if (key === "") return;
    this.#field.value = "";
    this.#dialog.close();
    this.#onKey(key, this.#forGood.checked);
  }
}
