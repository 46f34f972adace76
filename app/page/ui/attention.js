import { ReplyState } from "../client/reply.js";
import { addressOf } from "./conversations/address.js";
import { notifications } from "./settings/notifications.js";
import { t } from "./words/translate.js";

/** @typedef {import("../client/reply.js").Reply} Reply */

/** Asks for attention when a reply ends while the page is hidden: by a mark in its title, and by a notification if these are on. */
export class Attention {
  #title;
  #titleOf;
  /** @type {WeakSet<Reply>} */ #notified = new WeakSet();

  /**
   * @param {object} parts
   * @param {import("./page-title.js").PageTitle} parts.title
   * @param {(conversationId: string) => string} parts.titleOf   the title of a conversation, for its notification
   */
  constructor({ title, titleOf }) {
    this.#title = title;
    this.#titleOf = titleOf;
  }

  /** Call when a reply changed. @param {Reply} reply */
  look(reply) {
    if (!hasEnded(reply) || this.#notified.has(reply)) return;
    this.#notified.add(reply);
    if (!document.hidden) return;
    this.#title.mark();
    const { conversationId } = reply;
    const [body, address] = [this.#titleOf(conversationId), addressOf(conversationId)];
    void notifications.notify({ title: t("A reply has ended"), body, tag: conversationId, address });
  }
}

/** Whether nothing follows; after calls comes the next reply. @param {Reply} reply */
function hasEnded({ open, state, done }) {
  return !open && (state === ReplyState.ENDED ? done !== null && done.reason !== "tools" : true);
}
