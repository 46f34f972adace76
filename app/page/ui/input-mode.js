import { part } from "./elements/dom.js";
import { icon } from "./elements/icons.js";
import { t } from "./words/translate.js";

/** @typedef {{conversationId: string, stop: () => void}} Session  what runs in one conversation until it is stopped */
/**
 * @typedef {object} ModeParts
 * @property {import("../client/chat-client.js").ChatClient} client
 * @property {import("./elements/notices.js").Notices} notices
 * @property {{lasting: Storage | null, session: Storage | null}} places
 * @property {() => string} current   the id of the conversation that is shown
 * @property {() => void} onBegin     the other mode has to end
 */

/**
 * A way to enter words other than written messages, and the button that begins and ends it. Its modules are loaded when the
 * button is pressed. It continues after a reload of the tab.
 * @template {Session} Mode
 */
export class InputMode {
  /** @type {Mode | null} */ session = null;
  #button;
  #parts;
  #placeKey;
  #make;
  #onBegun;
  /** Stands for the press that is being handled. @type {symbol | null} */ #beginning = null;
  #looked = false;

  /**
   * @param {ModeParts} parts
   * @param {object} own
   * @param {string} own.button     its id
   * @param {string} own.image
   * @param {string} own.placeKey   of the tab's storage, for the conversation
   * @param {() => Promise<Mode>} own.make             makes a session, of modules that are imported then
   * @param {(session: Mode) => Promise<void>} own.onBegun
   */
  constructor(parts, { button, image, placeKey, make, onBegun }) {
    this.#parts = parts;
    this.#placeKey = placeKey;
    this.#make = make;
    this.#onBegun = onBegun;
    this.#button = part(button, HTMLButtonElement);
    this.#button.append(icon(image));
    this.#button.addEventListener("click", () => (this.#on ? this.stop() : void this.start()));
  }

  /** Goes on after a reload. @returns {Promise<void>} */
  async comeBack() {
    await this.start();
  }

  /** Shows the button where the mode is possible. @param {boolean} possible */
  offer(possible) {
    this.#button.hidden = !possible;
    if (this.#looked) return;
    this.#looked = true;
    const { places, current } = this.#parts;
    if (possible && places.session?.getItem(this.#placeKey) === current()) void this.comeBack();
  }

  /** Call when another conversation may be shown, since a session belongs to one. */
  turned() {
    if (this.#on && this.session?.conversationId !== this.#parts.current()) this.stop();
  }

  stop() {
    this.session?.stop();
    this.ended();
  }

  /** Begins, unless the button is pressed again meanwhile. False if `isReady` says so. @param {(session: Mode) => Promise<boolean>} isReady */
  async start(isReady = async () => true) {
    const beginning = (this.#beginning = Symbol("beginning"));
    this.#updateButton();
    const session = await this.#load();
    const ready = session !== null && (await isReady(session));
    if (this.#beginning !== beginning) session?.stop();
    else if (ready) await this.#begin(session);
    else {
      session?.stop();
      this.ended();
      return session === null;
    }
    return true;
  }

  /** Takes that the session has ended. */
  ended() {
    this.session = null;
    this.#beginning = null;
    this.#parts.places.session?.removeItem(this.#placeKey);
    this.#updateButton();
  }

  get #on() {
    return this.session !== null || this.#beginning !== null;
  }

  /** @param {Mode} session */
  async #begin(session) {
    this.#parts.onBegin();
    this.session = session;
    this.#beginning = null;
    this.#parts.places.session?.setItem(this.#placeKey, session.conversationId);
    await this.#onBegun(session);
  }

  /** @returns {Promise<Mode | null>} */
  async #load() {
    try {
      return await this.#make();
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // `import` rejects with it if a file does not come
      this.#parts.notices.show(t("A part of the page could not be loaded. Try again."));
      return null;
    }
  }

  #updateButton() {
    this.#button.setAttribute("aria-pressed", String(this.#on));
  }
}
