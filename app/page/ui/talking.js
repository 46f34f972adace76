import { ChatError } from "../client/chat-client.js";
import { part } from "./elements/dom.js";
import { icon } from "./elements/icons.js";
import { t } from "./words/translate.js";

/** Storage keys: how the user likes to talk, and, for this tab, the conversation where they talk. */
const WAY_KEY = "midstream.talk";
const PLACE_KEY = "midstream.talking";

/** @typedef {import("./spoken/voice.js").Voice} Voice */

/** The button that begins and ends talking. It is shown if the server listens. Its modules are loaded when it is pressed. */
export class Talking {
  #button = part("talk", HTMLButtonElement);
  /** @type {Voice | null} */ #voice = null;
  /** Stands for the press that is being handled. @type {symbol | null} */ #beginning = null;
  #looked = false;
  #parts;

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {import("./elements/notices.js").Notices} parts.notices
   * @param {{lasting: Storage | null, session: Storage | null}} parts.places
   * @param {() => string} parts.current              the id of the conversation that is shown
   * @param {() => string | undefined} parts.model    the model that the user chose for it
   * @param {(turnId: string) => {prose: HTMLElement | null, text: string}} parts.shown
   * @param {() => void} parts.onBegin                the other input mode has to end
   */
  constructor(parts) {
    this.#parts = parts;
    this.#button.append(icon("microphone"));
    this.#button.addEventListener("click", () => (this.#on ? this.stop() : void this.#start()));
    this.#updateButton();
  }

  /** @param {import("../client/frames.js").Ready} ready */
  know({ features = [] }) {
    this.#button.hidden = !features.includes("audio");
    if (this.#looked) return;
    this.#looked = true;
    if (!this.#button.hidden && this.#parts.places.session?.getItem(PLACE_KEY) === this.#parts.current()) void this.#comeBack();
  }

  /**
   * Ends the sound of a reply at once; null if it was not being spoken. `seenOff`: how much of its text was heard.
   * @param {import("../client/reply.js").Reply} reply
   */
  cut(reply) {
    return this.#voice?.cut(reply) ?? null;
  }

  /** Call when another conversation may be shown, since talking belongs to one. */
  turned() {
    if (this.#on && this.#voice?.conversationId !== this.#parts.current()) this.stop();
  }

  /** Ends talking. */
  stop() {
    this.#beginning = null;
    this.#voice?.stop();
    this.#ended();
  }

  get #on() {
    return this.#voice !== null || this.#beginning !== null;
  }

  async #start() {
    const beginning = (this.#beginning = Symbol("beginning"));
    this.#updateButton();
    const voice = await this.#load();
    if (voice === null) return this.#ended();
    if (this.#beginning !== beginning) return voice.stop();
    return this.#begin(voice);
  }

  /** After a reload: goes on talking if the browser allows sound without a click; else asks the user for one. */
  async #comeBack() {
    const offer = () => this.#parts.notices.offer(t("You were talking here before the page was reloaded. Replies are sent as text until you continue."), t("Keep talking"), () => void this.#start());
    if ((await permission()) !== "granted") return offer();
    const beginning = (this.#beginning = Symbol("beginning"));
    this.#updateButton();
    const voice = await this.#load();
    const plays = voice !== null && (await voice.canPlay());
    if (voice === null || this.#beginning !== beginning) return voice?.stop();
    if (plays) return this.#begin(voice);
    voice.stop();
    this.#ended();
    return offer();
  }

  /** @param {Voice} voice */
  async #begin(voice) {
    this.#parts.onBegin();
    this.#voice = voice;
    this.#beginning = null;
    this.#parts.places.session?.setItem(PLACE_KEY, voice.conversationId);
    await voice.start();
  }

  /** @returns {Promise<Voice | null>} */
  async #load() {
    const { client, places, current, model, shown } = this.#parts;
    try {
      const { Voice } = await import("./spoken/voice.js");
      return new Voice({
        ...{ client, shown, conversationId: current(), model: model() },
        way: places.lasting?.getItem(WAY_KEY) ?? "free",
        onWay: (way) => places.lasting?.setItem(WAY_KEY, way),
        onEnd: (why) => void this.#failed(why),
      });
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // `import` rejects with it if a file does not come
      this.#parts.notices.show(t("A part of the page could not be loaded. Try again."));
      return null;
    }
  }

  /** @param {unknown} why */
  async #failed(why) {
    this.#ended();
    if (why instanceof ChatError) return this.#parts.notices.report(why);
    if (why === "elsewhere") return this.#parts.notices.show(t("You are talking in this conversation in another tab or on another device now."));
    if (why === "lost") return this.#parts.notices.show(t("The microphone was disconnected. Press the button to continue talking."));
    if (!(why instanceof DOMException)) throw why;
    const { wordsForTrouble } = await import("./spoken/troubles.js");
    return this.#parts.notices.show(wordsForTrouble(why));
  }

  #ended() {
    this.#voice = null;
    this.#beginning = null;
    this.#parts.places.session?.removeItem(PLACE_KEY);
    this.#updateButton();
  }

  #updateButton() {
    const label = this.#on ? t("Stop talking") : t("Talk");
    this.#button.setAttribute("aria-pressed", String(this.#on));
    this.#button.title = label;
    this.#button.setAttribute("aria-label", t("Talk"));
  }
}

/** The microphone's permission; "prompt" if the browser does not tell it. */
async function permission() {
  try {
    const { state } = await navigator.permissions.query({ name: /** @type {PermissionName} */ ("microphone") });
    return state;
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    return "prompt";
  }
}
