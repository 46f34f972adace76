import { KeptTexts } from "./kept-texts.js";

/**
 * The user's settings for one conversation. Missing ones are the server's.
 * @typedef {object} Choice
 * @property {string} [model]
 * @property {string} [system]        the system prompt; empty: none
 * @property {number} [temperature]   0 to 2
 * @property {number} [maxTokens]     the most tokens of one reply
 * @property {number} [pace]          characters a second
 * @property {string} [reasoning]     `auto`, `off`, or an effort that the model knows
 */
/** @typedef {import("../../client/frames.js").Params} Params */

/** Choices are short. They are kept for this number of conversations, within this number of UTF-16 units. */
const MOST = 5_000;
const MOST_UNITS = 1_000_000;

/** The choices for this browser's conversations. */
export class Choices {
  #kept;

  /** @param {import("./kept-texts.js").Places} places */
  constructor(places) {
    this.#kept = new KeptTexts("midstream.choices", { ...places, most: MOST, mostUnits: MOST_UNITS });
  }

  /** @param {string} conversationId @returns {Choice} */
  of(conversationId) {
    const text = this.#kept.of(conversationId);
    return text === "" ? {} : JSON.parse(text);
  }

  /** @param {string} conversationId @param {Choice} choice */
  keep(conversationId, choice) {
    this.#kept.keep(conversationId, Object.keys(choice).length > 0 ? JSON.stringify(choice) : "");
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.#kept.forget(conversationId);
  }

  clear() {
    this.#kept.clear();
  }
}

/**
 * A choice as parameters of a message.
 * @param {Choice} choice
 * @returns {Params | undefined}
 */
export function paramsOf({ model, system, temperature, maxTokens, pace, reasoning }) {
  const params = { model, system, temperature, max_new_tokens: maxTokens, chars_per_s: pace, reasoning };
  return Object.values(params).some((value) => value !== undefined) ? params : undefined;
}
