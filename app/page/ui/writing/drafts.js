import { Kept } from "../settings/kept.js";
import { isUploading } from "./attachments.js";

/** @typedef {import("./attachments.js").Attached} Attached */
/** @typedef {{text: string, attachments: Attached[]}} Draft */

/** The most UTF-16 units of attachments that are kept: thirty of the longest messages. Of an image its name and a small copy count. */
const ATTACHED_UNITS = 1_000_000;

/** The unsent text and attachments of each conversation. They outlive a reload; images do once they are uploaded. */
export class Drafts {
  /** @type {Kept<string>} */ #texts;
  /** @type {Kept<Attached[]>} */ #attached;
  /** The attachments of drafts with an image that is still being uploaded. @type {Map<string, Attached[]>} */ #uploading = new Map();
  /** Stand for drafts until their conversations are deleted. @type {Map<string, symbol>} */ #lives = new Map();

  /** @param {import("../settings/kept.js").Places} places */
  constructor(places) {
    this.#texts = new Kept("midstream.drafts", places);
    this.#attached = new Kept("midstream.attachments", places, { units: ATTACHED_UNITS });
  }

  /** @param {string} conversationId @returns {Draft} */
  of(conversationId) {
    return { text: this.#texts.of(conversationId) ?? "", attachments: this.attachedIn(conversationId) };
  }

  /** @param {string} conversationId @returns {Attached[]} */
  attachedIn(conversationId) {
    return this.#uploading.get(conversationId) ?? this.#attached.of(conversationId) ?? [];
  }

  /** Another value than before if the conversation was deleted since. @param {string} conversationId */
  lifeOf(conversationId) {
    const life = this.#lives.get(conversationId) ?? Symbol("draft");
    this.#lives.set(conversationId, life);
    return life;
  }

  /** @param {string} conversationId @param {string} text */
  keepText(conversationId, text) {
    this.#texts.keep(conversationId, text === "" ? null : text);
  }

  /** @param {string} conversationId @param {Attached[]} attachments */
  keepAttachments(conversationId, attachments) {
    const lasting = attachments.filter((one) => !isUploading(one));
    if (lasting.length === attachments.length) this.#uploading.delete(conversationId);
    else this.#uploading.set(conversationId, attachments);
    this.#attached.keep(conversationId, lasting.length === 0 ? null : lasting);
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.#lives.delete(conversationId);
    this.#uploading.delete(conversationId);
    this.#texts.keep(conversationId, null);
    this.#attached.keep(conversationId, null);
  }

  clear() {
    this.#lives.clear();
    this.#uploading.clear();
    this.#texts.clear();
    this.#attached.clear();
  }
}
