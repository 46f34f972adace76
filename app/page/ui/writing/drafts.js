import { KeptTexts } from "../settings/kept-texts.js";
import { isUploading } from "./attached-images.js";

/** @typedef {import("./attached-images.js").Attached} Attached */
/** @typedef {{text: string, attachments: Attached[]}} Draft */

/** So many UTF-16 units of what is attached are kept at most: thirty messages of the longest kind. Of an image that is its name and a small one. */
const ATTACHED_UNITS = 1_000_000;

/** What was written and attached in each conversation, and not sent yet. It outlives a reload, an image once it is uploaded. */
export class Drafts {
  #texts;
  #attached;
  /** What is attached where an image is still being uploaded. @type {Map<string, Attached[]>} */ #uploading = new Map();

  /** @param {import("../settings/kept-texts.js").Places} places */
  constructor(places) {
    this.#texts = new KeptTexts("midstream.drafts", places);
    this.#attached = new KeptTexts("midstream.attached", { ...places, mostUnits: ATTACHED_UNITS });
  }

  /** @param {string} conversationId @returns {Draft} */
  of(conversationId) {
    return { text: this.#texts.of(conversationId), attachments: this.attachedIn(conversationId) };
  }

  /** @param {string} conversationId @returns {Attached[]} */
  attachedIn(conversationId) {
    const attached = this.#attached.of(conversationId);
    return this.#uploading.get(conversationId) ?? (attached === "" ? [] : JSON.parse(attached));
  }

  /** @param {string} conversationId @param {string} text */
  keepText(conversationId, text) {
    this.#texts.keep(conversationId, text);
  }

  /** @param {string} conversationId @param {Attached[]} attachments */
  keepAttachments(conversationId, attachments) {
    const lasting = attachments.filter((one) => !isUploading(one));
    if (lasting.length === attachments.length) this.#uploading.delete(conversationId);
    else this.#uploading.set(conversationId, attachments);
    this.#attached.keep(conversationId, lasting.length === 0 ? "" : JSON.stringify(lasting));
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.#uploading.delete(conversationId);
    this.#texts.forget(conversationId);
    this.#attached.forget(conversationId);
  }

  clear() {
    this.#uploading.clear();
    this.#texts.clear();
    this.#attached.clear();
  }
}
