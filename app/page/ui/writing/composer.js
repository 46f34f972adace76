import { ChatError } from "../../client/errors.js";
import { element, part } from "../elements/dom.js";
import { icon, iconButton } from "../elements/icons.js";
import { wordsFor } from "../elements/words.js";
import { fenced, joined } from "./attached-text.js";
import { MOST_IMAGES, isImage, isPicture, isUploading, readText, smallOf, whyNot } from "./attachments.js";
import { fits, isSubmit, textOf, wellFormed } from "./message-text.js";
import { t } from "../words/translate.js";

/** @typedef {import("./attachments.js").Attached} Attached */
/** @typedef {import("./attachments.js").AttachedImage} AttachedImage */

/** On a touch screen the focus would open a keyboard over the reply. */
const touch = matchMedia("(pointer: coarse)");

/** From this length on, a pasted text is attached instead of filling the box. */
const LONG_PASTE = 4000;
const MOST_FILES = 10;

/**
 * The form for messages and what is attached to them: files that were chosen, dropped or pasted, and long pasted texts. Calls
 * `onSend` with a text, and `onStop` to stop the running reply.
 */
export class Composer {
  #form = part("composer", HTMLFormElement);
  #field = part("message", HTMLTextAreaElement);
  #send = part("send", HTMLButtonElement);
  #stop = part("stop", HTMLButtonElement);
  #chooser = part("attach-files", HTMLInputElement);
  #attach = part("attach", HTMLButtonElement);
  #list = part("attachments", HTMLUListElement);
  #announcer = part("announcer", HTMLElement);
  /** @type {Attached[]} */ #attached = [];
  #actions;

  /**
   * @param {object} actions
   * @param {(text: string, images: import("../../client/frames.js").Attachment[]) => void} actions.onSend
   * @param {() => void} actions.onStop
   * @param {(text: string, how: {all: boolean}) => number | null} actions.onWritten  offers the text before it is sent. Returns
   *   how many UTF-16 units were taken; null: nobody takes it. `all`: the user pressed Send
   * @param {(words: string) => void} actions.onTrouble  something can't be attached or sent
   * @param {import("./drafts.js").Drafts} actions.drafts
   * @param {() => string} actions.current  the id of the conversation that is shown
   * @param {object} actions.images
   * @param {() => number | null} actions.images.limit  the most bytes of an image; 0 if the model takes none, null before it is known
   * @param {(file: File) => Promise<import("../../client/frames.js").Attachment>} actions.images.upload  raises ChatError
   * @param {() => Parameters<typeof fits>[1]} actions.limits
   */
  constructor(actions) {
    this.#actions = actions;
    this.#form.addEventListener("submit", (event) => this.#submit(event));
    this.#field.addEventListener("keydown", (event) => {
      if (isSubmit(event)) this.#submit(event);
    });
    this.#field.addEventListener("input", (event) => {
      if (!(/** @type {InputEvent} */ (event).isComposing)) this.#give({ all: false });
      this.#fit();
      this.#keepDraft();
    });
    this.#stop.addEventListener("click", () => this.stop());
    this.#attach.append(icon("attach"));
    this.#attach.addEventListener("click", () => this.#chooser.click());
    this.#chooser.addEventListener("change", async () => {
      await this.#add([...(this.#chooser.files ?? [])]);
      this.#chooser.value = ""; // then the same file can be chosen again
    });
    this.#field.addEventListener("paste", (event) => this.#onPaste(event));
    this.#form.addEventListener("dragover", (event) => event.preventDefault());
    this.#form.addEventListener("drop", (event) => this.#onDrop(event));
  }

  /** Updates the label of the button: what can be attached may have changed, as with another model. */
  offer() {
    const words = this.#actions.images.limit() ? t("Attach texts or images") : t("Attach text files");
    this.#attach.setAttribute("aria-label", words);
    this.#attach.title = words;
  }

  focus() {
    if (!touch.matches) this.#field.focus();
  }

  /** @param {string} text */
  #write(text) {
    this.#restore(text);
    this.#keepDraft();
    this.focus();
  }

  /** Puts text that was taken back before what was written since. @param {string} text */
  giveBack(text) {
    this.#write(this.#field.value === "" ? text.replace(/\n$/, "") : text + this.#field.value);
  }

  /** Shows the draft of another conversation. @param {import("./drafts.js").Draft} draft */
  turnTo({ text, attachments }) {
    this.#showAttached(attachments);
    this.#restore(text);
  }

  /** Puts a text into the box. @param {string} text */
  #restore(text) {
    this.#field.value = text;
    this.#fit();
  }

  /** Takes whether a reply runs that can be stopped. @param {boolean} running */
  setRunning(running) {
    if (this.#stop.hidden !== running) return;
    // A focused button that vanishes would leave the keyboard nowhere.
    if (document.activeElement === this.#stop) this.focus();
    this.#stop.hidden = !running;
    this.#send.setAttribute("aria-label", running ? t("Send, and stop the running reply") : t("Send"));
  }

  stop() {
    this.#actions.onStop();
    this.focus();
  }

  /** @param {Event} event */
  #submit(event) {
    event.preventDefault();
    if (this.#give({ all: true })) return;
    const text = this.#text;
    const images = this.#images;
    if (text === "" || this.#attached.some(isUploading)) return;
    if (!fits(text, this.#actions.limits())) return this.#actions.onTrouble(wordsFor({ code: "content_too_long", message: "" }));
    if (this.#attached.length > 0) this.#put([]);
    this.#write("");
    this.#actions.onSend(text, images);
  }

  /** Offers the text to whoever takes it. False if nobody does. @param {{all: boolean}} how */
  #give(how) {
    const taken = this.#actions.onWritten(this.#field.value, how);
    if (taken === null) return false;
    this.#field.setRangeText("", 0, taken, "preserve");
    this.#fit();
    this.#keepDraft();
    return true;
  }

  /** The whole message: the text in the box, and the attached texts. */
  get #text() {
    return joined(textOf(this.#field.value), this.#attached.flatMap((one) => (isPicture(one) ? [] : [fenced(one)])));
  }

  /** The uploaded images of the message. */
  get #images() {
    return this.#attached.flatMap((one) => (isPicture(one) && one.image !== null ? [one.image] : []));
  }

  #keepDraft() {
    this.#actions.drafts.keepText(this.#actions.current(), this.#field.value);
  }

  #fit() {
    const empty = this.#field.value.trim() === "" && this.#attached.every(isPicture);
    this.#send.disabled = empty || this.#attached.some(isUploading);
    // A message needs words: an image alone asks nothing.
    this.#field.placeholder = this.#images.length > 0 ? t("Write something about the image") : t("Write a message");
    // Firefox has no `field-sizing` yet.
    if (CSS.supports("field-sizing", "content")) return;
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
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
    if (text.length < LONG_PASTE || this.#actions.onWritten("", { all: false }) !== null) return;
    event.preventDefault();
    this.#put([...this.#attached, { name: t("pasted text"), text: wellFormed(text).trimEnd() }]);
  }

  /** Attaches files to the draft of the shown conversation, wherever the user turns meanwhile. @param {File[]} files */
  async #add(files) {
    const place = this.#actions.current();
    const life = this.#actions.drafts.lifeOf(place);
    for (const file of files) {
      const before = this.#in(place);
      if (before.length >= MOST_FILES) return this.#actions.onTrouble(t("A message can have up to {count} files.", { count: MOST_FILES }));
      const attached = isImage(file) ? await this.#pictureOf(file, before) : await this.#attachedText(file);
      if (this.#actions.drafts.lifeOf(place) !== life) return; // the conversation was deleted while the file was read
      if (attached === null) continue;
      this.#putIn(place, [...this.#in(place), attached]);
      if (isPicture(attached)) void this.#upload(file, attached, place);
    }
  }

  /** What is attached in a conversation. @param {string} place */
  #in(place) {
    return place === this.#actions.current() ? this.#attached : this.#actions.drafts.attachedIn(place);
  }

  /** @param {string} place @param {Attached[]} attached @param {boolean} [byUser] */
  #putIn(place, attached, byUser) {
    if (place === this.#actions.current()) this.#put(attached, byUser);
    else this.#actions.drafts.keepAttachments(place, attached);
  }

  /** Reads a file as text; null if it can't be attached. @param {File} file */
  async #attachedText(file) {
    const text = await readText(file);
    if (text !== null) return { name: file.name, text };
    this.#actions.onTrouble(t("“{name}” can't be attached. Only text files up to 512 KB are supported.", { name: file.name }));
    return null;
  }

  /** Reads a file as an image that is to be uploaded; null if it can't be attached. @param {File} file @param {Attached[]} before */
  async #pictureOf(file, before) {
    const { name } = file;
    let why = whyNot(file, this.#actions.images.limit());
    if (before.filter(isPicture).length >= MOST_IMAGES) why ||= t("A message can have up to {count} images.", { count: MOST_IMAGES });
    const small = why === "" ? await smallOf(file) : null;
    if (small !== null) return { name, small, image: null };
    this.#actions.onTrouble(why || t("“{name}” can't be attached: it can't be read as an image.", { name }));
    return null;
  }

  /** @param {File} file @param {AttachedImage} attached @param {string} place  the conversation where it was attached */
  async #upload(file, attached, place) {
    let words = "";
    /** @type {AttachedImage | null} */ let done = null;
    try {
      done = { ...attached, image: await this.#actions.images.upload(file) };
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      words = wordsFor(error);
    }
    const before = this.#in(place);
    if (!before.includes(attached)) return; // it was removed
    this.#putIn(place, before.flatMap((one) => (one !== attached ? [one] : done === null ? [] : [done])), false);
    if (words !== "") this.#actions.onTrouble(words);
    else if (place === this.#actions.current()) this.#announcer.textContent = t("“{name}” is attached.", { name: attached.name });
  }

  /** @param {Attached[]} attached @param {boolean} [byUser]  the user did it, not the end of an upload */
  #put(attached, byUser = true) {
    this.#showAttached(attached);
    this.#actions.drafts.keepAttachments(this.#actions.current(), attached);
    this.#fit();
    if (byUser) this.focus();
  }

  /** @param {Attached[]} attached */
  #showAttached(attached) {
    const focused = [...this.#list.children].findIndex((chip) => chip.contains(document.activeElement));
    this.#attached = attached;
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
