import { part } from "../elements/dom.js";
import { detailView } from "../elements/failure-view.js";
import { t } from "../words/translate.js";

/** @enum {string} Why a key is asked for. */
export const Why = Object.freeze({
  /** None was given. */
  NONE: t("You get one from whoever runs this service. It works like a password: enter it here, and the chat opens."),
  /** The key was accepted before. */
  LAPSED: t("Your key has expired or was revoked. Enter another one to continue."),
  /** The key is not accepted. */
  WRONG: t("This key is not valid here. Check that it is complete, or enter another one."),
});

/** Asks for a key. Calls `onKey` with it, and with whether to keep it for later visits. */
export class KeyPrompt {
  #dialog = part("key-prompt", HTMLDialogElement);
  #why = part("key-why", HTMLElement);
  #field = part("key-field", HTMLInputElement);
  #wrong = part("key-wrong", HTMLElement);
  #forGood = part("key-for-good", HTMLInputElement);
  #onKey;

  /** @param {{onKey: (key: string, forGood: boolean) => void}} actions */
  constructor({ onKey }) {
    this.#onKey = onKey;
    part("key-form", HTMLFormElement).addEventListener("submit", (event) => this.#submit(event));
    this.#field.addEventListener("input", () => this.#blame(null));
    part("key-later", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
  }

  /**
   * @param {string} why      one of Why
   * @param {string} message  the service's own words
   */
  ask(why, message) {
    this.#why.textContent = why === Why.WRONG ? "" : why;
    this.#blame(why === Why.WRONG ? message : null);
    if (this.#dialog.open) return;
    this.#field.value = "";
    this.#dialog.showModal();
  }

  close() {
    this.#dialog.close();
  }

  /** Says beside the field that its key was wrong; null removes that. @param {string | null} message */
  #blame(message) {
    this.#wrong.replaceChildren();
    this.#field.toggleAttribute("aria-invalid", false);
    if (message === null) return;
    this.#field.setAttribute("aria-invalid", "true");
    this.#wrong.append(Why.WRONG, " ", detailView({ code: "unauthenticated", message }));
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
