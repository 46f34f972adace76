import { copyButton } from "../elements/copy-button.js";
import { part } from "../elements/dom.js";
import { t } from "../words/translate.js";
import { readAll, save } from "./exporting.js";
import { editTitle } from "./title-field.js";

/** The menu of the shown conversation: renames, shares, exports and prints it. */
export class ConversationActions {
  #menu = part("menu", HTMLElement);
  #button = part("menu-button", HTMLButtonElement);
  #title = part("title", HTMLElement);
  #shared = part("share", HTMLDialogElement);
  #link = part("share-link", HTMLInputElement);
  #parts;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../elements/notices.js").Notices} parts.notices
   * @param {() => string} parts.current                                    the id of the conversation that is shown
   * @param {(conversationId: string, title: string) => void} parts.onRename
   */
  constructor(parts) {
    this.#parts = parts;
    for (const button of this.#menu.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        this.#menu.hidePopover();
        void this.#do(button.dataset.action ?? "");
      });
    }
    this.#link.after(copyButton(t("Copy the link"), () => this.#link.value));
    part("share-done", HTMLButtonElement).addEventListener("click", () => this.#shared.close());
  }

  /** @param {boolean} anything  whether something was said in the conversation */
  offer(anything) {
    this.#button.hidden = !anything;
    const share = /** @type {HTMLButtonElement} */ (this.#menu.querySelector("[data-action=share]"));
    share.hidden = !(this.#parts.client.ready?.features?.includes("share") ?? false);
  }

  /** @param {string} action */
  async #do(action) {
    const { client, notices, current } = this.#parts;
    if (action === "rename") return this.#rename();
    if (action === "share") return this.#share();
    if (action === "print") return globalThis.print();
    const messages = await notices.answer(readAll(client, current()));
    const format = action === "json" ? "json" : "markdown";
    if (messages !== null) save(format, { title: this.#title.textContent ?? "", messages });
  }

  /** Shows the link of the conversation, which can be copied or revoked. */
  async #share() {
    const { client, notices, current } = this.#parts;
    const conversationId = current();
    const shareId = await notices.answer(client.share(conversationId));
    if (shareId === null) return;
    part("share-stop", HTMLButtonElement).onclick = () => {
      void notices.answer(client.unshare(conversationId));
      this.#shared.close();
    };
    this.#link.value = new URL(`s/${shareId}`, location.href).href;
    this.#shared.showModal();
    this.#link.select();
  }

  /** Lets the user edit the title in its place. */
  #rename() {
    const conversationId = this.#parts.current();
    const onClose = (/** @type {string | null} */ title) => {
      if (title !== null) this.#parts.onRename(conversationId, title);
    };
    editTitle(this.#title, this.#title.textContent ?? "", { focus: this.#button, onClose });
  }
}
