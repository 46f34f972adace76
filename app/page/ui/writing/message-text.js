import { countCodePoints } from "../../client/code-points.js";

/** The bytes of a frame besides its text: its type, ids and parameters. */
const FRAME_BYTES = 1024;

/** The text that is sent: without halves of characters and blanks around it. @param {string} value */
export function textOf(value) {
  return wellFormed(value).trim();
}

/** A text that can be sent as UTF-8, without halves of surrogate pairs and without NULs. @param {string} text */
export function wellFormed(text) {
  return text.replaceAll(/\p{Surrogate}|\0/gu, "");
}

/**
 * Whether the service takes a message of this length: it counts code points of the text and bytes of the frame.
 * @param {string} text
 * @param {{max_content_chars: number, max_frame_bytes: number} | null} limits  null until they are known; then anything fits
 */
export function fits(text, limits) {
  if (limits === null) return true;
  const bytes = new TextEncoder().encode(JSON.stringify(text)).length;
  return countCodePoints(text) <= limits.max_content_chars && bytes <= limits.max_frame_bytes - FRAME_BYTES;
}

/** Whether a key sends the message: Enter, but not while an input method chooses words with it. @param {KeyboardEvent} event */
export function isSubmit(event) {
  // Safari shows composing by the key code only.
  const composing = event.isComposing || event.keyCode === 229;
  return event.key === "Enter" && !event.shiftKey && !composing;
}
