import { element } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "../words/translate.js";

const SHOWN_MS = 1600;

/**
 * A button that copies a text, and says so for a moment.
 * @param {string} label
 * @param {() => string} text
 */
export function copyButton(label, text) {
  const button = element("button", { class: "quiet copy", type: "button", "aria-label": label, title: label });
  const rest = () => {
    button.replaceChildren(icon("copy"));
    button.setAttribute("aria-label", label);
  };
  button.addEventListener("click", async () => {
    await copy(text());
    button.replaceChildren(icon("check"));
    button.setAttribute("aria-label", t("Copied"));
    setTimeout(rest, SHOWN_MS);
  });
  rest();
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
