import { InputMode } from "./input-mode.js";
import { tagOf } from "./words/languages.js";
import { language } from "./words/translate.js";

/** The languages that were chosen last. */
const OPTIONS_KEY = "midstream.interpreting";

/** @typedef {import("./interpreting/interpreter.js").Interpreter} Interpreter */
/** @typedef {import("./interpreting/interpreter.js").InterpretOptions} InterpretOptions */
/**
 * @typedef {import("./input-mode.js").ModeParts & {
 *   credentials: import("../client/credentials.js").Credentials,
 *   model: () => import("../client/frames.js").Model | null,
 *   onRest: (conversationId: string, text: string) => void,
 * }} TranslatingParts  `model`: for the next message; `onRest` takes text that will not be translated
 */

/** Live translation of what is written. Its button is shown if a model can translate. @extends {InputMode<Interpreter>} */
export class Translating extends InputMode {
  #parts;

  /** @param {TranslatingParts} parts */
  constructor(parts) {
    const own = { make: () => this.#make(), onBegun: (/** @type {Interpreter} */ interpreter) => this.#offer(interpreter) };
    super(parts, { button: "translate", image: "translate", placeKey: "midstream.interpreted", ...own });
    this.#parts = parts;
  }

  /** @param {import("../client/frames.js").Ready} ready */
  know({ features = [] }) {
    this.offer(features.includes("interpret") && this.#model !== null);
  }

  /**
   * Takes the whole words of a text that is being written; returns their length, or null if nothing is translated.
   * @param {string} text
   * @param {{all: boolean}} how
   */
  take(text, how) {
    return this.session?.take(text, how) ?? null;
  }

  /** The model that translates: one made for translation, the conversation's own first; else any that can. */
  get #model() {
    const [own, models] = [this.#parts.model()?.name, this.#parts.client.ready?.models ?? []];
    const sorted = [...models].sort((one, other) => Number(other.name === own) - Number(one.name === own));
    const can = (/** @type {string} */ feature) => sorted.find(({ features }) => features?.includes(feature));
    return can("translate") ?? can("continue") ?? null;
  }

  async #make() {
    const { client, places, current, notices, onRest } = this.#parts;
    const { Interpreter } = await import("./interpreting/interpreter.js");
    const conversationId = current();
    return new Interpreter({
      ...{ client, conversationId, model: () => this.#model?.name, options: this.#options },
      onOptions: (options) => places.lasting?.setItem(OPTIONS_KEY, JSON.stringify(options)),
      onTrouble: (error) => notices.report(error),
      onRest: (text) => onRest(conversationId, text),
    });
  }

  /** Offers the languages that the service lists for the model over HTTP. Chat models list none. @param {Interpreter} interpreter */
  async #offer(interpreter) {
    const { key } = this.#parts.credentials;
    const answer = await fetch("v1/models", key === null ? {} : { headers: { Authorization: `Bearer ${key}` } });
    if (!answer.ok) return;
    const { data } = await answer.json();
    const { languages } = data.find((/** @type {{id: string}} */ { id }) => id === this.#model?.name) ?? {};
    if (languages === undefined || this.session !== interpreter) return;
    interpreter.offer({ sources: tagsOf(languages.sources), targets: tagsOf(languages.targets) });
  }

  /** @returns {InterpretOptions} */
  get #options() {
    /** @type {InterpretOptions} */ const usual = { source: "en", target: language === "en" ? "zh" : language, publishPolicy: "segment" };
    const kept = this.#parts.places.lasting?.getItem(OPTIONS_KEY) ?? null;
    return kept === null ? usual : { ...usual, ...JSON.parse(kept) };
  }
}

/** The languages that have a tag, without repeats. @param {string[]} codes  as the model has them */
function tagsOf(codes) {
  return [...new Set(codes.map(tagOf).filter((tag) => tag !== null))];
}
