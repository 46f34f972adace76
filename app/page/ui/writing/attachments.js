import { ChatError } from "../../client/errors.js";
import { element, part } from "../elements/dom.js";
import { icon, iconButton } from "../elements/icons.js";
import { wordsFor } from "../elements/words.js";
import { fenced } from "./attached-text.js";
import { wellFormed } from "./size-note.js";
import { t, number } from "../words/translate.js";

/** @typedef {{byUser: boolean}} How  `byUser`: the user did it, not the end of an upload */

/** From this length on, a pasted text is attached instead of filling the box. */
const LONG_PASTE = 4000;
const MOST_FILES = 10;
/** The most bytes of a text file: more than most models read. */
const MAX_BYTES = 512 * 1024;

/** The attachments of the next message: files that were chosen, dropped or pasted, and long pasted texts. */
export class Attachments {
  #chooser = part("attach-files", HTMLInputElement);
  #button = part("attach", HTMLButtonElement);
  #list = part("attachments", HTMLUListElement);
  #announcer = part("announcer", HTMLElement);
  /** @type {Attached[]} */ #attached = [];
  /** @type {string[]} Made once, as every key press asks for them. */ #texts = [];
  #parts;

  /**
   * @param {object} parts
   * @param {HTMLElement} parts.target                  where files are dropped
   * @param {HTMLTextAreaElement} parts.field
   * @param {import("./drafts.js").Drafts} parts.drafts
   * @param {() => string} parts.current                the id of the conversation that is shown
   * @param {(how: How) => void} parts.onChange
   * @param {(words: string) => void} parts.onTrouble
   * @param {() => boolean} parts.inBox                 whether even long pasted texts go into the box
   * @param {ImagePlace} parts.images
   */
  constructor(parts) {
    const { target, field } = (this.#parts = parts);
    this.#button.append(icon("attach"));
    this.#button.addEventListener("click", () => this.#chooser.click());
    this.#chooser.addEventListener("change", () => void this.#onChosen());
    field.addEventListener("paste", (event) => this.#onPaste(event));
    target.addEventListener("dragover", (event) => event.preventDefault());
    target.addEventListener("drop", (event) => this.#onDrop(event));
  }

  /** The attached texts as they follow the message. */
  get parts() {
    return this.#texts;
  }

  /** The uploaded images of the message. */
  get images() {
    return this.#attached.flatMap((one) => (isPicture(one) && one.image !== null ? [one.image] : []));
  }

  /** Whether an image is still on its way to the server. */
  get uploading() {
    return this.#attached.some(isUploading);
  }

  /** Updates the button's label: it says what can be attached. */
  offer() {
    const words = this.#parts.images.limit() ? t("Attach texts or images") : t("Attach text files");
    this.#button.setAttribute("aria-label", words);
    this.#button.title = words;
  }

  /** Removes all attachments. */
  clear() {
    if (this.#attached.length > 0) this.#put([]);
  }

  /** Shows another draft's attachments instead of these. @param {Attached[]} attached */
  restore(attached) {
    this.#show(attached);
  }

  async #onChosen() {
    await this.#add([...(this.#chooser.files ?? [])]);
    this.#chooser.value = ""; // then the same file can be chosen again
  }

  /** @param {DragEvent} event */
  #onDrop(event) {
    const files = [...(event.dataTransfer?.files ?? [])];
    if (files.length === 0) return; // dragged words go into the box
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
    if (text.length < LONG_PASTE || this.#parts.inBox()) return;
    event.preventDefault();
    this.#put([...this.#attached, { name: t("pasted text"), text: wellFormed(text).trimEnd() }]);
  }

  /** Attaches files to the draft of the shown conversation, wherever the user turns meanwhile. @param {File[]} files */
  async #add(files) {
    const place = this.#parts.current();
    const life = this.#parts.drafts.lifeOf(place);
    for (const file of files) {
      const before = this.#in(place);
      if (before.length >= MOST_FILES) return this.#parts.onTrouble(t("A message can have up to {count} files.", { count: MOST_FILES }));
      const attached = isImage(file) ? await this.#pictureOf(file, before) : await this.#textOf(file);
      if (this.#parts.drafts.lifeOf(place) !== life) return; // the conversation was deleted while the file was read
      if (attached === null) continue;
      this.#putIn(place, [...this.#in(place), attached]);
      if (isPicture(attached)) void this.#upload(file, attached, place);
    }
  }

  /** What is attached in a conversation. @param {string} place */
  #in(place) {
    return place === this.#parts.current() ? this.#attached : this.#parts.drafts.attachedIn(place);
  }

  /** @param {string} place @param {Attached[]} attached @param {How} [how] */
  #putIn(place, attached, how) {
    if (place === this.#parts.current()) this.#put(attached, how);
    else this.#parts.drafts.keepAttachments(place, attached);
  }

  /** Reads a file as text; null if it can't be attached. @param {File} file */
  async #textOf(file) {
    const text = await read(file);
    if (text !== null) return { name: file.name, text };
    this.#parts.onTrouble(t("“{name}” can't be attached. Only text files up to 512 KB are supported.", { name: file.name }));
    return null;
  }

  /** Reads a file as an image that is to be uploaded; null if it can't be attached. @param {File} file @param {Attached[]} before */
  async #pictureOf(file, before) {
    const { name } = file;
    let why = whyNot(file, this.#parts.images.limit());
    if (before.filter(isPicture).length >= MOST_IMAGES) why ||= t("A message can have up to {count} images.", { count: MOST_IMAGES });
    const small = why === "" ? await smallOf(file) : null;
    if (small !== null) return { name, small, image: null };
    this.#parts.onTrouble(why || t("“{name}” can't be attached: it can't be read as an image.", { name }));
    return null;
  }

  /** @param {File} file @param {AttachedImage} attached @param {string} place  the conversation where it was attached */
  async #upload(file, attached, place) {
    let words = "";
    /** @type {AttachedImage | null} */ let done = null;
    try {
      done = { ...attached, image: await this.#parts.images.upload(file) };
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      words = wordsFor(error);
    }
    const before = this.#in(place);
    if (!before.includes(attached)) return; // it was removed
    this.#putIn(place, before.flatMap((one) => (one !== attached ? [one] : done === null ? [] : [done])), { byUser: false });
    if (words !== "") this.#parts.onTrouble(words);
    else if (place === this.#parts.current()) this.#announcer.textContent = t("“{name}” is attached.", { name: attached.name });
  }

  /** @param {Attached[]} attached @param {How} [how] */
  #put(attached, how = { byUser: true }) {
    this.#show(attached);
    this.#parts.drafts.keepAttachments(this.#parts.current(), attached);
    this.#parts.onChange(how);
  }

  /** @param {Attached[]} attached */
  #show(attached) {
    const focused = [...this.#list.children].findIndex((chip) => chip.contains(document.activeElement));
    this.#attached = attached;
    this.#texts = attached.flatMap((one) => (isPicture(one) ? [] : [fenced(one)]));
    this.#list.hidden = attached.length === 0;
    this.#list.replaceChildren(...attached.map((one) => this.#chip(one)));
    // The end of an upload must not move the focus.
    if (focused !== -1) this.#list.children[Math.min(focused, attached.length - 1)]?.querySelector("button")?.focus();
  }

  /** @param {Attached} attached */
  #chip(attached) {
    const { name } = attached;
    const onclick = () => this.#put(this.#attached.filter((one) => one !== attached));
    const remove = iconButton("close", t("Remove “{name}”", { name }), { onclick });
    if (!isPicture(attached)) return element("li", { class: "chip" }, element("span", { text: name, dir: "auto" }), remove);
    const image = element("img", { src: attached.small, alt: name, title: name });
    return element("li", { class: "chip pictured", "aria-busy": attached.image === null ? "true" : null }, image, remove);
  }
}

/**
 * @typedef {object} ImagePlace
 * @property {() => number | null} limit  the most bytes of an image; 0 if the model takes none, null before it is known
 * @property {(file: File) => Promise<import("../../client/frames.js").Attachment>} upload  raises ChatError
 */

/** A file's text; null if it is no text, or too long. @param {File} file */
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

/** Images in the composer: which files may be attached, and how they are shown before they are sent. */

/**
 * @typedef {object} AttachedImage
 * @property {string} name
 * @property {string} small  a small copy, which is shown before it is sent
 * @property {import("../../client/frames.js").Attachment | null} image  null while it is being uploaded
 */
/** @typedef {import("./attached-text.js").Attachment | AttachedImage} Attached */

/** The most images of a message. */
export const MOST_IMAGES = 8;
const TYPES = new Set(["image/png", "image/jpeg", "image/webp", "image/gif"]);
/** The longer side of the small copy, in px: twice its size on the screen. */
const SIDE = 128;

/** @param {Attached} attached @returns {attached is AttachedImage} */
function isPicture(attached) {
  return "small" in attached;
}

/** Whether an attached image is still on its way to the server. @param {Attached} attached */
export function isUploading(attached) {
  return isPicture(attached) && attached.image === null;
}

/** Whether a file is an image. SVG counts as text. @param {File} file */
function isImage({ type }) {
  return type.startsWith("image/") && type !== "image/svg+xml";
}

/**
 * Words for why an image can't be attached; empty if it can.
 * @param {File} file
 * @param {number | null} limit  the most bytes of an image; 0 if the model takes none, null before it is known
 */
function whyNot({ name, size, type }, limit) {
  if (limit === null) return t("There is no connection at the moment. Try again when it is back.");
  if (limit === 0) return t("“{name}” can't be attached: this model doesn't support images.", { name });
  if (!TYPES.has(type)) return t("“{name}” can't be attached: images are PNG, JPEG, WebP or GIF.", { name });
  const most = number(Math.floor((limit / 1024 ** 2) * 10) / 10);
  return size > limit ? t("“{name}” can't be attached: an image has up to {most} MB.", { name, most }) : "";
}

/** A small copy of an image as a `data:` URL; null if the browser can't draw it. @param {Blob} file @returns {Promise<string | null>} */
async function smallOf(file) {
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d")?.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    return canvas.toDataURL("image/webp", 0.8);
  } catch (error) {
    if (error instanceof DOMException) return null;
    throw error;
  }
}
