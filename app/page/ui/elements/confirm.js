import { part } from "./dom.js";
import { t } from "../words/translate.js";

/**
 * Asks whether to delete a conversation. False also if the question was closed with Esc.
 * @param {string} title
 * @returns {Promise<boolean>}
 */
export function confirmDelete(title) {
  const dialog = part("confirm", HTMLDialogElement);
  part("confirm-text", HTMLElement).textContent = t("“{title}” and all of its messages will be gone for good.", { title });
  part("confirm-no", HTMLButtonElement).onclick = () => dialog.close("no");
  part("confirm-yes", HTMLButtonElement).onclick = () => dialog.close("yes");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
