import { part } from "../elements/dom.js";
import { joined } from "./attached-text.js";
import { Attachments } from "./attachments.js";
import { SizeNote, textOf, isSubmit } from "./size-note.js";
import { t } from "../words/translate.js";

/** On a touch screen the focus would open a keyboard over the reply. */
const touch = matchMedia("(pointer: coarse)");

/** The form for messages. Calls `onSend` with a text, and `onStop` to stop the running reply. */
export class Composer {
  #form = part("composer", HTMLFormElement);
  #field = part("message", HTMLTextAreaElement);
  #send = part("send", HTMLButtonElement);
  #stop = part("stop", HTMLButtonElement);
  #attachments;
  #size;
  #actions;

  /**
   * @param {object} actions
   * @param {(text: string, images: import("../../client/frames.js").Attachment[]) => void} actions.onSend
   * @param {() => void} actions.onStop
   * @param {(text: string, how: {all: boolean}) => number | null} actions.onWritten  offers the text before it is sent. Returns
   *   how many UTF-16 units were taken; null: nobody takes it. `all`: the user pressed Send
   * @param {(words: string) => void} actions.onTrouble  something can't be attached
   * @param {import("./drafts.js").Drafts} actions.drafts
   * @param {() => string} actions.current  the id of the conversation that is shown
   * @param {import("./attachments.js").ImagePlace} actions.images
   * @param {() => import("./size-note.js").Limits | null} actions.limits
   */
  constructor(actions) {
    this.#actions = actions;
    this.#attachments = new Attachments({
      target: this.#form,
      field: this.#field,
      drafts: actions.drafts,
      current: actions.current,
      onChange: (how) => this.#onAttached(how),
      onTrouble: actions.onTrouble,
      inBox: () => actions.onWritten("", { all: false }) !== null,
      images: actions.images,
    });
    this.#size = new SizeNote(this.#field, actions.limits, () => this.#text);
    this.#form.after(this.#size.root);
    this.#form.addEventListener("submit", (event) => this.#submit(event));
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    this.#field.addEventListener("input", (event) => this.#changed(event));
    this.#stop.addEventListener("click", () => this.stop());
  }

  /** Call when what can be attached may have changed, as with another model. */
  offer() {
    this.#attachments.offer();
  }

  focus() {
    if (!touch.matches) this.#field.focus();
  }

  /** @param {string} text */
  write(text) {
    this.restore(text);
    this.#keepDraft();
    this.focus();
  }

  /** Puts text that was taken back before what was written since. @param {string} text */
  giveBack(text) {
    this.write(this.#field.value === "" ? text.replace(/\n$/, "") : text + this.#field.value);
  }

  /** Shows the draft of another conversation. @param {import("./drafts.js").Draft} draft */
  turnTo({ text, attachments }) {
    this.#attachments.restore(attachments);
    this.restore(text);
  }

  /** Puts a text into the box. @param {string} text */
  restore(text) {
    this.#field.value = text;
    this.#size.fits();
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
    const { images, uploading } = this.#attachments;
    if (text === "" || uploading || !this.#size.fits()) return;
    this.#attachments.clear();
    this.write("");
    this.#actions.onSend(text, images);
  }

  /** Offers the text to whoever takes it. False if nobody does. @param {{all: boolean}} how */
  #give(how) {
    const taken = this.#actions.onWritten(this.#field.value, how);
    if (taken === null) return false;
    this.#field.setRangeText("", 0, taken, "preserve");
    this.#size.fits();
    this.#fit();
    this.#keepDraft();
    return true;
  }

  /** The whole message: the text in the box, and the attached texts. */
  get #text() {
    return joined(textOf(this.#field.value), this.#attachments.parts);
  }

  /** @param {import("./attachments.js").How} how */
  #onAttached({ byUser }) {
    this.#size.fits();
    this.#fit();
    if (byUser) this.focus();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (isSubmit(event)) this.#submit(event);
  }

  /** @param {Event} event */
  #changed(event) {
    if (!(/** @type {InputEvent} */ (event).isComposing)) this.#give({ all: false });
    this.#fit();
    this.#keepDraft();
  }

  #keepDraft() {
    this.#actions.drafts.keepText(this.#actions.current(), this.#field.value);
  }

  #fit() {
    const { parts, images, uploading } = this.#attachments;
    this.#send.disabled = uploading || (this.#field.value.trim() === "" && parts.length === 0);
    // A message needs words: an image alone asks nothing.
    this.#field.placeholder = images.length > 0 ? t("Write something about the image") : t("Write a message");
    // Firefox has no `field-sizing` yet.
    if (CSS.supports("field-sizing", "content")) return;
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
  }
}
