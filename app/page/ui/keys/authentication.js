import { part } from "../elements/dom.js";
import { detailView } from "../elements/words.js";
import { t } from "../words/translate.js";

/** Why a key is asked for: none was given, or the key was accepted before. */
const NO_KEY = t("Ask the operator of this service for a key. It works like a password: enter it here, and the chat opens.");
const LAPSED = t("Your key has expired or was revoked. Enter another one to continue.");
/** What is said about a key that is not accepted. */
const WRONG = t("This key is not valid here. Check that it is complete, or enter another one.");

/** Lets the user in if the service asks for a key: asks for the key, keeps it, and forgets it when told to. */
export class Authentication {
  #dialog = part("key-prompt", HTMLDialogElement);
  #why = part("key-why", HTMLElement);
  #field = part("key-field", HTMLInputElement);
  #wrong = part("key-wrong", HTMLElement);
  #forget = part("forget-key", HTMLButtonElement);
  #parts;
  /** @type {string | null} The key that was accepted last. */ #opened = null;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../../client/credentials.js").Credentials} parts.credentials
   * @param {import("../elements/notices.js").Notices} parts.notices
   * @param {() => void} parts.onLeave   the user leaves: nothing that was said may stay readable
   */
  constructor(parts) {
    this.#parts = parts;
    part("key-form", HTMLFormElement).addEventListener("submit", (event) => this.#submit(event));
    part("key-later", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
    this.#field.addEventListener("input", () => this.#blame(null));
    this.#forget.addEventListener("click", () => this.#leave());
    // Another tab forgot the key, which this tab has too.
    parts.credentials.onForgotten(() => this.#leave());
  }

  /** Takes that the service accepted this page. */
  opened() {
    this.#dialog.close();
    this.#opened = this.#parts.credentials.key;
    this.#forget.hidden = this.#opened === null;
  }

  /** Takes that the service refuses this page. @param {string} message  its own words */
  shut(message) {
    const { key } = this.#parts.credentials;
    const wrong = key !== null && key !== this.#opened;
    this.#why.textContent = wrong ? "" : key === null ? NO_KEY : LAPSED;
    this.#blame(wrong ? message : null);
    if (this.#dialog.open) return;
    this.#field.value = "";
    this.#dialog.showModal();
  }

  /** Says beside the field that its key was wrong; null removes that. @param {string | null} message */
  #blame(message) {
    this.#wrong.replaceChildren();
    this.#field.toggleAttribute("aria-invalid", false);
    if (message === null) return;
    this.#field.setAttribute("aria-invalid", "true");
    this.#wrong.append(WRONG, " ", detailView({ code: "unauthenticated", message }));
  }

  /** @param {Event} event */
  #submit(event) {
    event.preventDefault();
    const key = this.#field.value.trim();
    if (key === "") return;
    this.#field.value = "";
    this.#dialog.close();
    this.#parts.credentials.keep(key, { forGood: part("key-for-good", HTMLInputElement).checked });
    void this.#parts.notices.answer(this.#parts.client.authenticate());
  }

  #leave() {
    this.#parts.credentials.forget();
    this.#parts.client.close();
    this.#parts.onLeave();
  }
}
