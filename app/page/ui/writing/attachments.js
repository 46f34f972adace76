import { ChatError } from "../../client/errors.js";
import { element, part } from "../elements/dom.js";
import { icon } from "../elements/icons.js";
import { wordsFor } from "../elements/words.js";
import { isImage, MOST_IMAGES, smallOf, whyNot } from "./attached-images.js";
import { fenced } from "./attached-text.js";
import { wellFormed } from "./typing.js";
import { t } from "../words/translate.js";

/** @typedef {import("./attached-text.js").Attachment} AttachedText */
/**
 * @typedef {object} AttachedImage
 * @property {string} name
 * @property {string} small  as it is shown before it is sent
 * @property {import("../../client/frames.js").Attachment | null} image  null while it is being uploaded
 */
/** @typedef {AttachedText | AttachedImage} Attached */

/** A pasted text of so many characters is attached, instead of filling the box. */
const LONG_PASTE = 4000;
const MOST_FILES = 10;
/** What a text may have at most to be read at all: more than most models read. */
const MAX_BYTES = 512 * 1024;

/** What will go with the next message: files that were chosen, dropped or pasted, and long texts that were pasted. */
export class Attachments {
  #chooser = part("attach-files", HTMLInputElement);
  #button = part("attach", HTMLButtonElement);
  #list = part("attachments", HTMLUListElement);
  #told = part("announcer", HTMLElement);
  /** @type {Attached[]} */ #attached = [];
  /** @type {string[]} Made once: they are asked for with every key. */ #parts = [];
  #visit = 0;
  #onChange;
  #onTrouble;
  #inBox;
  #images;

  /**
   * @param {object} parts
   * @param {HTMLElement} parts.target                  where files are dropped
   * @param {HTMLTextAreaElement} parts.field
   * @param {(attached: Attached[], how: {byUser: boolean}) => void} parts.onChange  `byUser`: not by an upload that has ended
   * @param {(words: string) => void} parts.onTrouble
   * @param {() => boolean} parts.inBox                 whether long texts that are pasted go into the box all the same
   * @param {ImagePlace} parts.images
   */
  constructor({ target, field, onChange, onTrouble, inBox, images }) {
    this.#onChange = onChange;
    this.#onTrouble = onTrouble;
    this.#inBox = inBox;
    this.#images = images;
    this.#button.append(icon("attach"));
    this.#button.addEventListener("click", () => this.#chooser.click());
    this.#chooser.addEventListener("change", () => void this.#onChosen());
    field.addEventListener("paste", (event) => this.#onPaste(event));
    target.addEventListener("dragover", (event) => event.preventDefault());
    target.addEventListener("drop", (event) => this.#onDrop(event));
  }

  /** What the texts are behind a message. */
  get parts() {
    return this.#parts;
  }

  /** The images that the message shows. */
  get images() {
    return this.#attached.flatMap((one) => (isPicture(one) && one.image !== null ? [one.image] : []));
  }

  /** Whether an image is still on its way to the server. */
  get uploading() {
    return this.#attached.some((one) => isPicture(one) && one.image === null);
  }

  /** Says what can be attached. */
  offer() {
    const words = this.#images.limit() ? t("Attach texts or images") : t("Attach text files");
    this.#button.setAttribute("aria-label", words);
    this.#button.title = words;
  }

  /** Leaves none; what is being read meanwhile comes too late. */
  clear() {
    this.#visit += 1;
    if (this.#attached.length > 0) this.#put([]);
  }

  /** Shows those of another draft in the place of these. @param {Attached[]} attached */
  restore(attached) {
    this.#visit += 1;
    this.#show(attached);
  }

  async #onChosen() {
    await this.#add([...(this.#chooser.files ?? [])]);
    this.#chooser.value = ""; // so that the same file can be chosen again
  }

  /** @param {DragEvent} event */
  #onDrop(event) {
    const files = [...(event.dataTransfer?.files ?? [])];
    if (files.length === 0) return; // words that were dragged go into the box
    event.preventDefault();
    void this.#add(files);
  }

  /** @param {ClipboardEvent} event */
  #onPaste(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    const files = [...(event.clipboardData?.files ?? [])];
    if (text === "" && files.length > 0) {
      event.preventDefault();
      void this.#add(files);
      return;
    }
    if (text.length < LONG_PASTE || this.#inBox()) return;
    event.preventDefault();
    this.#put([...this.#attached, { name: t("pasted text"), text: wellFormed(text).trimEnd() }]);
  }

  /** @param {File[]} files */
  async #add(files) {
    const visit = this.#visit;
    for (const file of files) {
      if (this.#attached.length >= MOST_FILES) return this.#onTrouble(t("A message takes {count} files at most.", { count: MOST_FILES }));
      const attached = isImage(file) ? await this.#pictureOf(file) : await this.#textOf(file);
      if (visit !== this.#visit) return;
      if (attached === null) continue;
      this.#put([...this.#attached, attached]);
      if (isPicture(attached)) void this.#upload(file, attached);
    }
  }

  /** A file's text; null where it can't be attached. @param {File} file */
  async #textOf(file) {
    const text = await read(file);
    if (text !== null) return { name: file.name, text };
    this.#onTrouble(t("“{name}” can't be attached: only texts of up to 512 KB can.", { name: file.name }));
    return null;
  }

  /** An image as it is shown here; null where it can't be attached. @param {File} file */
  async #pictureOf(file) {
    const { name } = file;
    let why = whyNot(file, this.#images.limit());
    if (this.#attached.filter(isPicture).length >= MOST_IMAGES) why ||= t("A message takes {count} images at most.", { count: MOST_IMAGES });
    const small = why === "" ? await smallOf(file) : null;
    if (small !== null) return { name, small, image: null };
    this.#onTrouble(why || t("“{name}” can't be attached: it can't be read as an image.", { name }));
    return null;
  }

  /** @param {File} file @param {AttachedImage} attached */
  async #upload(file, attached) {
    let words = "";
    /** @type {AttachedImage | null} */ let done = null;
    try {
      done = { ...attached, image: await this.#images.upload(file) };
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      words = wordsFor(error);
    }
    if (!this.#attached.includes(attached)) return; // it was removed, or another draft is shown
    this.#put(this.#attached.flatMap((one) => (one !== attached ? [one] : done === null ? [] : [done])), { byUser: false });
    if (words !== "") this.#onTrouble(words);
    else this.#told.textContent = t("“{name}” is attached.", { name: attached.name });
  }

  /** @param {Attached[]} attached @param {{byUser: boolean}} [how] */
  #put(attached, how = { byUser: true }) {
    this.#show(attached);
    this.#onChange(attached.filter((one) => !isPicture(one) || one.image !== null), how);
  }

  /** @param {Attached[]} attached */
  #show(attached) {
    const focused = [...this.#list.children].findIndex((chip) => chip.contains(document.activeElement));
    this.#attached = attached;
    this.#parts = attached.flatMap((one) => (isPicture(one) ? [] : [fenced(one)]));
    this.#list.hidden = attached.length === 0;
    this.#list.replaceChildren(...attached.map((one) => this.#chip(one)));
    // An upload that ends takes the keyboard from nobody.
    if (focused !== -1) this.#list.children[Math.min(focused, attached.length - 1)]?.querySelector("button")?.focus();
  }

  /** @param {Attached} attached */
  #chip(attached) {
    const { name } = attached;
    const remove = element("button", { class: "quiet", type: "button", "aria-label": t("Remove “{name}”", { name }) }, icon("close"));
    remove.addEventListener("click", () => this.#put(this.#attached.filter((one) => one !== attached)));
    if (!isPicture(attached)) return element("li", { class: "chip" }, element("span", { text: name, dir: "auto" }), remove);
    const image = element("img", { src: attached.small, alt: name, title: name });
    return element("li", { class: "chip pictured", "aria-busy": attached.image === null ? "true" : null }, image, remove);
  }
}

/**
 * @typedef {object} ImagePlace
 * @property {() => number | null} limit  what an image may have, in bytes; 0 where the model takes none, null before that is known
 * @property {(file: File) => Promise<import("../../client/frames.js").Attachment>} upload  raises ChatError
 */

/** @param {Attached} attached @returns {attached is AttachedImage} */
function isPicture(attached) {
  return "small" in attached;
}

/** A file's text; null where it has none, or too much. @param {File} file */
async function read(file) {
  if (file.size > MAX_BYTES) return null;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text.replaceAll("\r\n", "\n").trimEnd();
  } catch (error) {
    if (error instanceof TypeError || error instanceof DOMException) return null; // no UTF-8, or not readable
    throw error;
  }
}
