import { ConversationMenu } from "./conversation-menu.js";
import { readAll, save } from "./exporting.js";
import { RenameBox } from "./rename-box.js";
import { ShareBox } from "./share-box.js";
import { part } from "../elements/dom.js";

/** @typedef {import("./conversation-menu.js").Action} Action */

/** Does what the shown conversation's menu offers: rename, share, export, print. */
export class ConversationActions {
  #menu = new ConversationMenu((action) => void this.#do(action));
  #shareBox = new ShareBox();
  #title = part("title", HTMLElement);
  #client;
  #reporter;
  #current;
  #onRename;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../reporter.js").Reporter} parts.reporter
   * @param {() => string} parts.current                                    the id of the conversation that is shown
   * @param {(conversationId: string, title: string) => void} parts.onRename
   */
  constructor({ client, reporter, current, onRename }) {
    this.#client = client;
    this.#reporter = reporter;
    this.#current = current;
    this.#onRename = onRename;
  }

  /** @param {boolean} anything  whether something was said in the conversation */
  offer(anything) {
    this.#menu.show(anything, { shares: this.#client.ready?.features?.includes("share") ?? false });
  }

  /** @param {Action} action */
  async #do(action) {
    if (action === "rename") return this.#rename();
    if (action === "share") return this.#share();
    if (action === "print") return globalThis.print();
    const messages = await this.#reporter.answer(readAll(this.#client, this.#current()));
    if (messages !== null) save(action, { title: this.#title.textContent ?? "", messages });
  }

  async #share() {
    const conversationId = this.#current();
    const shareId = await this.#reporter.answer(this.#client.share(conversationId));
    if (shareId === null) return;
    const onStop = () => void this.#reporter.answer(this.#client.unshare(conversationId));
    this.#shareBox.show(new URL(`s/${shareId}`, location.href).href, onStop);
  }

  /** Lets the user edit the title in its place. */
  #rename() {
    const conversationId = this.#current();
    const onClose = (/** @type {string | null} */ title, /** @type {{key: boolean}} */ by) => {
      box.root.replaceWith(this.#title);
      if (by.key) this.#menu.focus();
      if (title !== null) this.#onRename(conversationId, title);
    };
    const box = new RenameBox(this.#title.textContent ?? "", { onClose });
    this.#title.replaceWith(box.root);
    box.focus();
  }
}
