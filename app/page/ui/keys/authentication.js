import { part } from "../elements/dom.js";
import { KeyPrompt, Why } from "./key-prompt.js";

/** Lets the user in if the service asks for a key: asks for the key, keeps it, and forgets it when told to. */
export class Authentication {
  #client;
  #credentials;
  #reporter;
  #onLeave;
  #prompt = new KeyPrompt({ onKey: (key, forGood) => this.#enter(key, forGood) });
  #forget = part("forget-key", HTMLButtonElement);
  /** @type {string | null} The key that was accepted last. */ #opened = null;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../../client/credentials.js").Credentials} parts.credentials
   * @param {import("../reporter.js").Reporter} parts.reporter
   * @param {() => void} parts.onLeave   the user leaves: nothing that was said may stay readable
   */
  constructor({ client, credentials, reporter, onLeave }) {
    this.#client = client;
    this.#credentials = credentials;
    this.#reporter = reporter;
    this.#onLeave = onLeave;
    this.#forget.addEventListener("click", () => this.#leave());
    // Another tab forgot the key, which this tab has too.
    this.#credentials.onForgotten(() => this.#leave());
  }

  /** Takes that the service accepted this page. */
  opened() {
    this.#prompt.close();
    this.#opened = this.#credentials.key;
    this.#forget.hidden = this.#opened === null;
  }

  /** Takes that the service refuses this page. @param {string} message  its own words */
  shut(message) {
    const { key } = this.#credentials;
    const again = key === this.#opened ? Why.LAPSED : Why.WRONG;
    this.#prompt.ask(key === null ? Why.NONE : again, message);
  }

  /**
   * @param {string} key
   * @param {boolean} forGood
   */
  #enter(key, forGood) {
    this.#credentials.keep(key, { forGood });
    void this.#reporter.answer(this.#client.authenticate());
  }

  #leave() {
    this.#credentials.forget();
    this.#client.close();
    this.#onLeave();
  }
}
