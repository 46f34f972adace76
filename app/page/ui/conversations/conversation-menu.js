import { part } from "../elements/dom.js";

/** @typedef {"rename" | "share" | "markdown" | "json" | "print"} Action */

/** The menu of the shown conversation, behind one button. */
export class ConversationMenu {
  #root = part("menu", HTMLElement);
  #button = part("menu-button", HTMLButtonElement);
  #share = /** @type {HTMLButtonElement} */ (this.#root.querySelector("[data-action=share]"));

  /** @param {(action: Action) => void} onChoose */
  constructor(onChoose) {
    for (const button of this.#root.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        this.#root.hidePopover();
        const action = button.dataset.action;
        if (action !== undefined) onChoose(/** @type {Action} */ (action));
      });
    }
  }

  focus() {
    this.#button.focus();
  }

  /**
   * Shows the menu's button if anything was said.
   * @param {boolean} anything
   * @param {{shares: boolean}} options  whether conversations can be shared
   */
  show(anything, { shares }) {
    this.#button.hidden = !anything;
    this.#share.hidden = !shares;
  }
}
