import { element } from "../elements/dom.js";
import { t } from "../words/translate.js";

/** The longest title, in code points. `maxlength` counts UTF-16 units, which are at least as many. */
const MAX_CHARS = 200;

/**
 * Lets the user edit a title in the place of an element. Enter and leaving the field keep the new title, Esc keeps the old one.
 * @param {HTMLElement} place
 * @param {string} before
 * @param {{focus: HTMLElement, onClose: (title: string | null) => void}} then  `focus`: what has it after a key; `title`: null if it stays as it is
 */
export function editTitle(place, before, { focus, onClose }) {
  const field = element("input", { type: "text", maxlength: MAX_CHARS, "aria-label": t("Title"), autocomplete: "off", dir: "auto" });
  const form = element("form", { class: "rename" }, field);
  let closed = false;
  const close = (/** @type {string} */ written, /** @type {boolean} */ byKey) => {
    if (closed) return;
    closed = true; // what is removed loses the focus, too
    form.replaceWith(place);
    if (byKey) focus.focus();
    const title = written.trim();
    onClose(title === "" || title === before ? null : title);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    close(field.value, true);
  });
  field.addEventListener("blur", () => close(field.value, false));
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing) return;
    // Esc stops a running reply if there is nothing else to close.
    event.preventDefault();
    close(before, true);
  });
  field.value = before;
  place.replaceWith(form);
  field.focus();
  field.select();
}
