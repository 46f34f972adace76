import { Announcer } from "./announcer.js";
import { Attention } from "./attention.js";

/** Tells of replies beside showing them: to screen readers, in the title of a hidden page, by notifications, in notices. */
export class ReplyAlerts {
  #announcer = new Announcer();
  #attention;
  #notices;
  #current;

  /**
   * @param {object} parts
   * @param {import("./page-title.js").PageTitle} parts.title
   * @param {(conversationId: string) => string} parts.titleOf
   * @param {import("./elements/notices.js").Notices} parts.notices
   * @param {() => string} parts.current  the id of the conversation that is shown
   */
  constructor({ title, titleOf, notices, current }) {
    this.#attention = new Attention({ title, titleOf });
    this.#notices = notices;
    this.#current = current;
  }

  /** Call when a reply changed. @param {import("../client/reply.js").Reply} reply */
  look(reply) {
    if (reply.conversationId === this.#current()) this.#announcer.tell(reply);
    this.#attention.look(reply);
    // A refused message says itself why; a reply that was to be made anew has no message to say it.
    if (reply.error !== null && reply.content === null) this.#notices.tell(reply.error);
  }
}
