import { Announcer } from "./announcer.js";
import { Attention } from "./attention.js";

/** Announces replies: to screen readers, in the title of a hidden page, by notifications and in notices. */
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
    if (reply.conversationId === this.#current()) this.#announcer.announce(reply);
    this.#attention.look(reply);
    // A refused message shows its own reason. A regenerated reply has no message that could show it.
    if (reply.error !== null && reply.content === null) this.#notices.report(reply.error);
  }
}
