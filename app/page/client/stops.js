import { ChatError } from "./errors.js";
import { Reply } from "./reply.js";

/** @typedef {{reply: Reply, frame: {conversation_id: string} & Record<string, unknown>}} Stop */

/** The frame that stops a reply where it is shown now. @param {Reply} reply */
export function stopOf({ conversationId, turnId, exchangeId, visibleChars }) {
  const named = { turn_id: turnId ?? undefined, client_msg_id: exchangeId ?? undefined };
  return { type: "cancel", conversation_id: conversationId, ...named, seen_off: visibleChars };
}

/** Stops of single replies that the server has not answered yet. After a lost connection they are sent again. */
export class Stops {
  /** @type {Set<Stop>} */ #unanswered = new Set();
  #live;
  #ask;

  /**
   * @param {object} parts
   * @param {import("./live-replies.js").LiveReplies} parts.live
   * @param {(frame: Record<string, unknown>) => Promise<any>} parts.ask   rejects with ChatError
   */
  constructor({ live, ask }) {
    this.#live = live;
    this.#ask = ask;
  }

  /** The conversations of these replies. */
  get conversations() {
    return [...this.#unanswered].map(({ frame }) => frame.conversation_id);
  }

  /**
   * Notes a stop. It names the reply's message, so it counts before the turn has an id and for the turn that follows calls.
   * @param {Reply} reply
   * @param {number} seenOff
   */
  add(reply, seenOff) {
    const stop = { reply, frame: { ...stopOf(reply), seen_off: seenOff } };
    this.#unanswered.add(stop);
    return stop;
  }

  /** Whether a reply's stop is not answered yet. @param {Reply} reply */
  has(reply) {
    return [...this.#unanswered].some((stop) => stop.reply === reply);
  }

  /** The frames of all. */
  get frames() {
    return [...this.#unanswered].map(({ frame }) => frame);
  }

  /** Takes a stop from before a reload; `again` sends it. @param {Stop["frame"]} frame */
  restore(frame) {
    const reply = new Reply(frame.conversation_id);
    reply.withdraw(); // the history has the real one
    this.#unanswered.add({ reply, frame });
  }

  /**
   * Sends a stop. Raises ChatError: if the server refuses, the reply goes on.
   * @param {Stop} stop
   * @returns {Promise<import("./frames.js").Cancelled>}
   */
  async send(stop) {
    try {
      const answer = await this.#ask(stop.frame);
      this.#unanswered.delete(stop);
      const { reply } = stop;
      // A message that the server does not have was lost on its way. It is not sent again.
      if (answer.turn_id === null && reply.turnId === null && reply.open) this.#live.withdraw(reply);
      return answer;
    } catch (error) {
      if (error instanceof ChatError && !error.lost) {
        this.#unanswered.delete(stop);
        this.#live.releaseOne(stop.reply);
      }
      throw error;
    }
  }

  /**
   * Sends the stops of a conversation on a new connection. Returns false if that is lost again.
   * @param {string} conversationId
   */
  async again(conversationId) {
    for (const stop of [...this.#unanswered].filter(({ frame }) => frame.conversation_id === conversationId)) {
      try {
        await this.send(stop);
      } catch (error) {
        if (!(error instanceof ChatError)) throw error;
        if (error.lost) return false;
      }
    }
    return true;
  }

  /** Forgets the stops of a conversation: it is gone, or all its replies are stopped. @param {string} conversationId */
  forget(conversationId) {
    for (const stop of this.#unanswered) if (stop.frame.conversation_id === conversationId) this.#unanswered.delete(stop);
  }
}
