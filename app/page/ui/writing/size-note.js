import { element } from "../elements/dom.js";
import { t, number } from "../words/translate.js";
import { countCodePoints } from "../../client/code-points.js";

let made = 0;

/** The text that is sent: without halves of characters and blanks around it. @param {string} value */
export function textOf(value) {
  return wellFormed(value).trim();
}

/** A note beside a box for messages: says how full the box is when it is nearly full, and when it is too full. */
export class SizeNote {
  #count = element("span");
  #word = element("strong", { role: "status" });
  #field;
  #limits;
  #text;

  /**
   * @param {HTMLTextAreaElement} field
   * @param {() => Limits | null} limits
   * @param {() => string} [text]  the message, if that is more than the text in the box
   */
  constructor(field, limits, text = () => textOf(field.value)) {
    this.#field = field;
    this.#limits = limits;
    this.#text = text;
    made += 1;
    this.root = element("p", { class: "size", id: `size-${made}`, hidden: true }, this.#word, " ", this.#count);
    const described = field.getAttribute("aria-describedby") ?? "";
    field.setAttribute("aria-describedby", `${described} ${this.root.id}`.trim());
    field.addEventListener("input", () => this.fits());
  }

  /** Whether the message can be sent; says so if it can't. */
  fits() {
    const { near, over, words } = sizeOf(this.#text(), this.#limits());
    this.root.hidden = !near;
    this.root.classList.toggle("over", over);
    this.#count.textContent = words;
    const word = over ? t("Too long to be sent.") : "";
    if (this.#word.textContent !== word) this.#word.textContent = word;
    if (over) this.#field.setAttribute("aria-invalid", "true");
    else this.#field.removeAttribute("aria-invalid");
    return !over;
  }
}

/** @typedef {{max_content_chars: number, max_frame_bytes: number}} Limits */
/** @typedef {{near: boolean, over: boolean, words: string}} Size */

/** From this share of a limit on, the user sees how much of it is used. */
const NEAR = 0.9;
/** The bytes of a frame beside its text: its type, ids and parameters. */
const FRAME_BYTES = 1024;
const FITS = Object.freeze({ near: false, over: false, words: "" });

/**
 * A message's size beside the limits of the service, which counts code points of the text and bytes of the frame.
 * @param {string} text
 * @param {Limits | null} limits  null until they are known; then anything fits
 * @returns {Size}
 */
function sizeOf(text, limits) {
  // No text has more code points than UTF-16 units, or more than six bytes of JSON for each unit.
  if (limits === null || text.length * 6 < NEAR * Math.min(limits.max_content_chars, limits.max_frame_bytes - FRAME_BYTES)) return FITS;
  const chars = { used: countCodePoints(text), limit: limits.max_content_chars };
  const bytes = { used: new TextEncoder().encode(JSON.stringify(text)).length, limit: limits.max_frame_bytes - FRAME_BYTES };
  const [ofChars, ofBytes] = [chars.used / chars.limit, bytes.used / bytes.limit];
  const share = Math.max(ofChars, ofBytes);
  if (share < NEAR) return FITS;
  const words =
    ofChars >= ofBytes
      ? t("{used} of {limit} characters", { used: number(chars.used), limit: number(chars.limit) })
      : t("{used} of {limit} KB", { used: number(Math.ceil(bytes.used / 1024)), limit: number(Math.floor(bytes.limit / 1024)) });
  return { near: true, over: share > 1, words };
}

/** Whether a key sends the message: Enter, but not while an input method chooses words with it. @param {KeyboardEvent} event */
export function isSubmit(event) {
  // Safari shows composing by the key code only.
  const composing = event.isComposing || event.keyCode === 229;
  return event.key === "Enter" && !event.shiftKey && !composing;
}

/** A text that can be sent as UTF-8, without halves of surrogate pairs and without NULs. @param {string} text */
export function wellFormed(text) {
  return text.replaceAll(/\p{Surrogate}|\0/gu, "");
}
