import { ReplyState } from "../client/reply.js";
import { part } from "./elements/dom.js";
import { spoken } from "./markdown/speech.js";
import { splitThought } from "./replies/thoughts.js";
import { SentenceAnnouncer } from "./sentence-announcer.js";
import { t } from "./words/translate.js";

/**
 * Tells screen readers how a reply ended, what it says, and which calls ask for permission: once, not word by word.
 * A live translation is told by its sentences.
 */
export class Announcer {
  #root = part("announcer", HTMLElement);
  #sentences = new SentenceAnnouncer(this.#root);
  /** @type {WeakSet<import("../client/call.js").Call>} */ #announcedCalls = new WeakSet();

  /** @param {import("../client/reply.js").Reply} reply */
  announce(reply) {
    if (reply.interprets !== null) return this.#sentences.announce(reply);
    for (const call of reply.calls) if (call.asks) this.#ask(call);
    const goesOn = reply.done === null ? reply.calls.length > 0 : reply.done.reason === "tools";
    if (reply.state === ReplyState.ENDED && !goesOn) void this.#ended(reply);
  }

  /** @param {import("../client/call.js").Call} call */
  #ask(call) {
    if (this.#announcedCalls.has(call)) return;
    this.#announcedCalls.add(call);
    this.#root.textContent = t("{name} asks for your permission. Allow or deny it among the messages.", { name: call.name });
  }

  /** @param {import("../client/reply.js").Reply} reply */
  async #ended(reply) {
    const how = reply.done?.reason === "stop" ? t("Reply") : t("Reply, cut short");
    this.#root.textContent = `${how}: ${await spoken(splitThought(reply.text).answer)}`;
  }
}
