import { ChatError } from "./errors.js";

/**
 * What a new connection sends for each conversation: it asks for missed events or the history first, then sends what still
 * waits here.
 */
export class Comeback {
  #follower;
  #live;
  #outgoing;
  #stops;
  #ask;

  /**
   * @param {object} parts
   * @param {import("./follower.js").Follower} parts.follower
   * @param {import("./live-replies.js").LiveReplies} parts.live
   * @param {import("./outgoing.js").Outgoing} parts.outgoing
   * @param {import("./stops.js").Stops} parts.stops
   * @param {(frame: Record<string, unknown>) => Promise<any>} parts.ask   rejects with ChatError
   */
  constructor({ follower, live, outgoing, stops, ask }) {
    this.#follower = follower;
    this.#live = live;
    this.#outgoing = outgoing;
    this.#stops = stops;
    this.#ask = ask;
  }

  /** Call when a connection is open. */
  begin() {
    const waiting = [...this.#live.unfinished.map(({ reply }) => reply.conversationId), ...this.#stops.conversations];
    for (const conversationId of new Set([...this.#follower.followed, ...waiting])) void this.#goOn(conversationId);
  }

  /** @param {string} conversationId */
  async #goOn(conversationId) {
    const resumed = await this.#follower.comeBack(conversationId);
    if (resumed === null) return;
    const stopping = this.#live.openIn(conversationId).find((reply) => reply.stopping && !reply.alone);
    if (stopping !== undefined && (await this.#stop(conversationId, stopping.visibleChars))) return;
    if (!(await this.#stops.again(conversationId))) return;
    this.#outgoing.again(conversationId, { acceptedToo: !resumed });
  }

  /**
   * Sends the stop that the user asked for without a connection. Replies at the server end, and waiting messages are not sent.
   * False if the server refuses, and all goes on.
   * @param {string} conversationId
   * @param {number} seenOff
   */
  async #stop(conversationId, seenOff) {
    try {
      await this.#ask({ type: "cancel", conversation_id: conversationId, seen_off: seenOff });
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      if (error.lost) return true; // The next connection asks again.
      this.#live.release(conversationId);
      return false;
    }
    this.#stops.forget(conversationId);
    for (const reply of this.#live.openIn(conversationId)) {
      if (reply.stopping && reply.turnId === null) this.#live.withdraw(reply);
    }
    return true;
  }
}
