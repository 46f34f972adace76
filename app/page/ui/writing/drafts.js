import { KeptTexts } from "../settings/kept-texts.js";

/** @typedef {import("./attachments.js").Attached} Attached */
/** @typedef {{text: string, attachments: Attached[]}} Draft */

/** So many UTF-16 units of what is attached are kept at most: thirty messages of the longest kind. Of an image that is its name and a small one. */
const ATTACHED_UNITS = 1_000_000;

/** What was written and attached in each conversation, and not sent yet: it outlives a reload. */
export class Drafts {
  #texts;
  #attached;

  /** @param {import("../settings/kept-texts.js").Places} places */
  constructor(places) {
    this.#texts = new KeptTexts("midstream.drafts", places);
    this.#attached = new KeptTexts("midstream.attached", { ...places, mostUnits: ATTACHED_UNITS });
  }

  /** @param {string} conversationId @returns {Draft} */
  of(conversationId) {
    const attached = this.#attached.of(conversationId);
    return { text: this.#texts.of(conversationId), attachments: attached === "" ? [] : JSON.parse(attached) };
  }

  /** @param {string} conversationId @param {string} text */
  keepText(conversationId, text) {
    this.#texts.keep(conversationId, text);
  }

  /** @param {string} conversationId @param {Attached[]} attachments */
  keepAttachments(conversationId, attachments) {
    this.#attached.keep(conversationId, attachments.length === 0 ? "" : JSON.stringify(attachments));
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.#texts.forget(conversationId);
    this.#attached.forget(conversationId);
  }

  clear() {
    this.#texts.clear();
    this.#attached.clear();
  }
}
