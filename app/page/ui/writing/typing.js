/** What keys and texts mean wherever a message is written. */

/** Whether a key sends the message: Enter, but not while an input method chooses words with it. @param {KeyboardEvent} event */
export function isSubmit(event) {
  // Safari tells of composing by the key code only.
  const composing = event.isComposing || event.keyCode === 229;
  return event.key === "Enter" && !event.shiftKey && !composing;
}

/** A text that can be sent as UTF-8: pasted halves of surrogate pairs and NULs are left out. @param {string} text */
export function wellFormed(text) {
  return text.replaceAll(/\p{Surrogate}|\0/gu, "");
}
