import { element } from "./dom.js";
import { icon, iconButton } from "./icons.js";
import { t } from "../words/translate.js";

const SHOWN_MS = 1600;

/**
 * A button that copies a text, and says so for a moment.
 * @param {string} label
 * @param {() => string} text
 */
export function copyButton(label, text) {
  const show = (/** @type {string} */ name, /** @type {string} */ words) => {
    button.replaceChildren(icon(name));
    button.setAttribute("aria-label", words);
  };
  const onclick = async () => {
    await copy(text());
    show("check", t("Copied"));
    setTimeout(() => show("copy", label), SHOWN_MS);
  };
  const button = iconButton("copy", label, { class: "quiet copy", title: label, onclick });
  return button;
}

/** @param {string} text */
async function copy(text) {
  // Browsers have the clipboard's interface in secure contexts only; a chat in a home network is none.
  if (navigator.clipboard !== undefined) await navigator.clipboard.writeText(text);
  else copyBySelection(text);
}

/** @param {string} text */
function copyBySelection(text) {
  const focused = document.activeElement;
  const field = element("textarea", { class: "visually-hidden", "aria-hidden": "true", readonly: true });
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
}
