/** Keys and texts of boxes for messages. */

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
