import { part } from "./dom.js";
import { splitThought } from "./thoughts.js";

/** Tells screen readers how a reply ended and what it says: once, instead of word by word. */
export class Announcer {
  #root = part("announcer", HTMLElement);

  /** @param {import("../client/reply.js").Reply} reply */
  ended(reply) {
    const how = reply.done?.reason === "stop" ? "Reply" : "Reply, cut short";
    this.#root.textContent = `${how}: ${splitThought(reply.text).answer}`;
  }
}
