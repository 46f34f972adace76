import { part } from "./elements/dom.js";
import { icon } from "./elements/icons.js";
import { tagOf } from "./words/languages.js";
import { language, t } from "./words/translate.js";

/** Storage keys: the languages that were chosen last, and, for this tab, the conversation that is translated. */
const OPTIONS_KEY = "midstream.interpreting";
const PLACE_KEY = "midstream.interpreted";

/** @typedef {import("./interpreting/interpreter.js").Interpreter} Interpreter */
/** @typedef {import("./interpreting/interpreting-bar.js").InterpretOptions} InterpretOptions */

/** The button for live translation of what is written. It is shown if a model can translate. */
export class Translating {
  #button = part("translate", HTMLButtonElement);
  /** @type {Interpreter | null} */ #interpreter = null;
  /** Stands for the press that is being handled. @type {symbol | null} */ #beginning = null;
  #looked = false;
  #parts;

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {import("../client/credentials.js").Credentials} parts.credentials
   * @param {import("./elements/notices.js").Notices} parts.notices
   * @param {{lasting: Storage | null, session: Storage | null}} parts.places
   * @param {() => string} parts.current                            the id of the conversation that is shown
   * @param {() => import("../client/frames.js").Model | null} parts.model  the model for the next message
   * @param {(conversationId: string, text: string) => void} parts.onRest  takes text that will not be translated
   * @param {() => void} parts.onBegin                              the other input mode has to end
   */
  constructor(parts) {
    this.#parts = parts;
    this.#button.append(icon("translate"));
    this.#button.addEventListener("click", () => (this.#on ? this.stop() : void this.#start()));
  }

  /** @param {import("../client/frames.js").Ready} ready */
  know({ features = [] }) {
    this.#button.hidden = !features.includes("interpret") || this.#model === null;
    if (this.#looked) return;
    this.#looked = true;
    if (!this.#button.hidden && this.#parts.places.session?.getItem(PLACE_KEY) === this.#parts.current()) void this.#start();
  }

  /**
   * Takes the whole words of a text that is being written; returns their length, or null if nothing is translated.
   * @param {string} text
   * @param {{all: boolean}} how
   */
  take(text, how) {
    return this.#interpreter?.take(text, how) ?? null;
  }

  /** Call when another conversation may be shown. */
  turned() {
    if (this.#on && this.#interpreter?.conversationId !== this.#parts.current()) this.stop();
  }

  /** Ends the translation where it is: what is written is a message again. */
  stop() {
    this.#interpreter?.close();
    this.#ended();
  }

  get #on() {
    return this.#interpreter !== null || this.#beginning !== null;
  }

  /** The model that translates: one made for translation, the conversation's own first; else any that can. */
  get #model() {
    const [own, models] = [this.#parts.model()?.name, this.#parts.client.ready?.models ?? []];
    const sorted = [...models].sort((one, other) => Number(other.name === own) - Number(one.name === own));
    const can = (/** @type {string} */ feature) => sorted.find(({ features }) => features?.includes(feature));
    return can("translate") ?? can("continue") ?? null;
  }

  async #start() {
    const beginning = (this.#beginning = Symbol("beginning"));
    this.#updateButton();
    try {
      const { Interpreter } = await import("./interpreting/interpreter.js");
      if (this.#beginning === beginning) this.#begin(Interpreter);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // `import` rejects with it if a file does not come
      this.#ended();
      this.#parts.notices.show(t("A part of the page could not be loaded. Try again."));
    }
  }

  /** @param {typeof import("./interpreting/interpreter.js").Interpreter} Made */
  #begin(Made) {
    const { client, places, current, notices, onBegin, onRest } = this.#parts;
    onBegin();
    const onOptions = (/** @type {InterpretOptions} */ options) => places.lasting?.setItem(OPTIONS_KEY, JSON.stringify(options));
    const [conversationId, model] = [current(), () => this.#model?.name];
    const onTrouble = (/** @type {import("../client/errors.js").ChatError} */ error) => notices.report(error);
    const interpreter = (this.#interpreter = new Made({
      ...{ client, conversationId, model, options: this.#options, onOptions, onTrouble },
      onRest: (text) => onRest(conversationId, text),
    }));
    this.#beginning = null;
    places.session?.setItem(PLACE_KEY, conversationId);
    this.#updateButton();
    void this.#offer(interpreter);
  }

  /** Offers the languages that the service lists for the model over HTTP. Chat models list none. @param {Interpreter} interpreter */
  async #offer(interpreter) {
    const { key } = this.#parts.credentials;
    const answer = await fetch("v1/models", key === null ? {} : { headers: { Authorization: `Bearer ${key}` } });
    if (!answer.ok) return;
    const { data } = await answer.json();
    const { languages } = data.find((/** @type {{id: string}} */ { id }) => id === this.#model?.name) ?? {};
    if (languages === undefined || this.#interpreter !== interpreter) return;
    interpreter.offer({ sources: tagsOf(languages.sources), targets: tagsOf(languages.targets) });
  }

  /** @returns {InterpretOptions} */
  get #options() {
    /** @type {InterpretOptions} */ const usual = { source: "en", target: language === "en" ? "zh" : language, publishPolicy: "segment" };
    const kept = this.#parts.places.lasting?.getItem(OPTIONS_KEY) ?? null;
    return kept === null ? usual : { ...usual, ...JSON.parse(kept) };
  }

  #ended() {
    this.#interpreter = null;
    this.#beginning = null;
    this.#parts.places.session?.removeItem(PLACE_KEY);
    this.#updateButton();
  }

  #updateButton() {
    this.#button.setAttribute("aria-pressed", String(this.#on));
  }
}

/** The languages that have a tag, without repeats. @param {string[]} codes  as the model has them */
function tagsOf(codes) {
  return [...new Set(codes.map(tagOf).filter((tag) => tag !== null))];
}
