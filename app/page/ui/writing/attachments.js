import { element, part } from "../elements/dom.js";
import { icon } from "../elements/icons.js";
import { fenced } from "./attached-text.js";
import { wellFormed } from "./typing.js";
import { t } from "../words/translate.js";

/** @typedef {import("./attached-text.js").Attachment} Attachment */

/** A pasted text of so many characters is attached, instead of filling the box. */
const LONG_PASTE = 4000;
const MOST_FILES = 10;
/** What a file may have at most to be read at all: more than most models read. */
const MAX_BYTES = 512 * 1024;

/** The texts that will go with the next message: files that were chosen or dropped, and long texts that were pasted. */
export class Attachments {
  #chooser = part("attach-files", HTMLInputElement);
  #list = part("attachments", HTMLUListElement);
  /** @type {Attachment[]} */ #attached = [];
  /** @type {string[]} Made once: they are asked for with every key. */ #parts = [];
  #visit = 0;
  #onChange;
  #onTrouble;
  #inBox;

  /**
   * @param {object} parts
   * @param {HTMLElement} parts.target                  where files are dropped
   * @param {HTMLTextAreaElement} parts.field
   * @param {(attached: Attachment[]) => void} parts.onChange
   * @param {(words: string) => void} parts.onTrouble
   * @param {() => boolean} parts.inBox                 whether long texts that are pasted go into the box all the same
   */
  constructor({ target, field, onChange, onTrouble, inBox }) {
    this.#onChange = onChange;
    this.#onTrouble = onTrouble;
    this.#inBox = inBox;
    const button = part("attach", HTMLButtonElement);
    button.append(icon("attach"));
    button.addEventListener("click", () => this.#chooser.click());
    this.#chooser.addEventListener("change", () => void this.#onChosen());
    field.addEventListener("paste", (event) => this.#onPaste(event));
    target.addEventListener("dragover", (event) => event.preventDefault());
    target.addEventListener("drop", (event) => this.#onDrop(event));
  }

  /** What they are behind a message. */
  get parts() {
    return this.#parts;
  }

  /** Leaves none; what is being read meanwhile comes too late. */
  clear() {
    this.#visit += 1;
    if (this.#attached.length > 0) this.#put([]);
  }

  /** Shows those of another draft in the place of these. @param {Attachment[]} attached */
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
    if (text.length < LONG_PASTE || this.#inBox()) return;
    event.preventDefault();
    this.#put([...this.#attached, { name: t("pasted text"), text: wellFormed(text).trimEnd() }]);
  }

  /** @param {File[]} files */
  async #add(files) {
    const visit = this.#visit;
    for (const file of files) {
      if (this.#attached.length >= MOST_FILES) return this.#onTrouble(t("A message takes {count} files at most.", { count: MOST_FILES }));
      const text = await read(file);
      if (visit !== this.#visit) return;
      if (text === null) this.#onTrouble(t("“{name}” can't be attached: only texts of up to 512 KB can.", { name: file.name }));
      else this.#put([...this.#attached, { name: file.name, text }]);
    }
  }

  /** @param {Attachment[]} attached */
  #put(attached) {
    this.#show(attached);
    this.#onChange(attached);
  }

  /** @param {Attachment[]} attached */
  #show(attached) {
    this.#attached = attached;
    this.#parts = attached.map(fenced);
    this.#list.hidden = attached.length === 0;
    this.#list.replaceChildren(...attached.map((one) => this.#chip(one)));
  }

  /** @param {Attachment} attachment */
  #chip(attachment) {
    const remove = element("button", { class: "quiet", type: "button", "aria-label": t("Remove “{name}”", { name: attachment.name }) }, icon("close"));
    remove.addEventListener("click", () => this.#put(this.#attached.filter((one) => one !== attachment)));
    return element("li", { class: "chip" }, element("span", { text: attachment.name, dir: "auto" }), remove);
  }
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
