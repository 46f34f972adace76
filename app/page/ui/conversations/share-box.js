import { copyButton } from "../elements/copy-button.js";
import { part } from "../elements/dom.js";
import { t } from "../words/translate.js";

/** Shows the link of a shared conversation, which can be copied or revoked. */
export class ShareBox {
  #dialog = part("share", HTMLDialogElement);
  #link = part("share-link", HTMLInputElement);
  #stop = part("share-stop", HTMLButtonElement);

  constructor() {
    this.#link.after(copyButton(t("Copy the link"), () => this.#link.value));
    part("share-done", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
  }

  /**
   * @param {string} url
   * @param {() => void} onStop
   */
  show(url, onStop) {
    this.#link.value = url;
    this.#stop.onclick = () => {
      onStop();
      this.#dialog.close();
    };
    this.#dialog.showModal();
    this.#link.select();
  }
}
