/**
 * What the user chose for one conversation; what is left out is as the server has it.
 * @typedef {object} Choice
 * @property {string} [model]
 * @property {string} [system]        the words before all others; empty: none
 * @property {number} [temperature]   0 to 2
 * @property {number} [maxTokens]     of one reply
 * @property {number} [pace]          characters a second that text is told at
 * @property {string} [reasoning]     how much is thought: `auto`, `off`, or a word that the model knows
 */
/** @typedef {import("../../client/frames.js").Params} Params */

const KEY = "midstream.choices";
/** Conversations whose choices this browser keeps; those that were not chosen for longest are forgotten. */
const KEPT = 200;

/** The choices for the conversations of this browser, kept in its storage. */
export class Choices {
  /** @type {Map<string, Choice>} Those that were chosen last come last. */
  #byConversation;
  #storage;

  /** @param {Storage | null} storage  null: for this visit alone */
  constructor(storage) {
    this.#storage = storage;
    this.#byConversation = new Map(Object.entries(read(storage)));
  }

  /** @param {string} conversationId @returns {Choice} */
  of(conversationId) {
    return this.#byConversation.get(conversationId) ?? {};
  }

  /** @param {string} conversationId @param {Choice} choice */
  keep(conversationId, choice) {
    this.#byConversation.delete(conversationId);
    if (Object.keys(choice).length > 0) this.#byConversation.set(conversationId, choice);
    for (const oldest of this.#byConversation.keys()) {
      if (this.#byConversation.size <= KEPT) break;
      this.#byConversation.delete(oldest);
    }
    this.#write();
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.keep(conversationId, {});
  }

  /** Leaves none of them behind, in the storage too. */
  forgetAll() {
    this.#byConversation.clear();
    this.#storage?.removeItem(KEY);
  }

  #write() {
    try {
      this.#storage?.setItem(KEY, JSON.stringify(Object.fromEntries(this.#byConversation)));
    } catch (error) {
      // The storage is full: they hold for this visit.
      if (!(error instanceof DOMException)) throw error;
    }
  }
}

/**
 * A choice as a message says it.
 * @param {Choice} choice
 * @returns {Params | undefined}
 */
export function paramsOf({ model, system, temperature, maxTokens, pace, reasoning }) {
  const params = { model, system, temperature, max_new_tokens: maxTokens, chars_per_s: pace, reasoning };
  return Object.values(params).some((value) => value !== undefined) ? params : undefined;
}

/** @param {Storage | null} storage @returns {Record<string, Choice>} */
function read(storage) {
  try {
    const kept = JSON.parse(storage?.getItem(KEY) ?? "{}");
    return typeof kept === "object" && kept !== null ? kept : {};
  } catch (error) {
    if (error instanceof SyntaxError) return {}; // somebody else wrote there
    throw error;
  }
}
