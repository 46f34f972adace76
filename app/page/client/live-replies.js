import { Reply } from "./reply.js";

/** @typedef {{reply: Reply, frame: Record<string, unknown>}} Unfinished */

/** The replies whose end was not seen yet: by turn, and those of this client by the id of their message too. */
export class LiveReplies {
  /** @type {Map<string, Unfinished>} */ #own = new Map();
  /** @type {Map<string, Reply>} */ #byTurn = new Map();

  /** Own messages with the frames to send them again with, oldest first. */
  get unfinished() {
    return [...this.#own.values()];
  }

  /**
   * Adds a message of this client.
   * @param {Reply} reply
   * @param {{client_msg_id: string} & Record<string, unknown>} frame
   */
  add(reply, frame) {
    this.#own.set(frame.client_msg_id, { reply, frame });
  }

  /** @param {string} clientMsgId */
  ownOf(clientMsgId) {
    return this.#own.get(clientMsgId)?.reply;
  }

  /** @param {string} turnId */
  ofTurn(turnId) {
    return this.#byTurn.get(turnId);
  }

  /** The reply that a message was accepted for; a new one where another device sent it. @param {import("./frames.js").Accepted} frame */
  accept(frame) {
    const known = this.ownOf(frame.client_msg_id) ?? this.#byTurn.get(frame.turn_id);
    const reply = known ?? new Reply(frame.conversation_id);
    reply.accept(frame);
    this.#byTurn.set(frame.turn_id, reply);
    return reply;
  }

  /**
   * The reply of a turn that runs, whether or not it was known here: it may have begun before this client came.
   * @param {string} conversationId
   * @param {string} turnId
   */
  running(conversationId, turnId) {
    let reply = this.#byTurn.get(turnId);
    if (reply === undefined) {
      reply = new Reply(conversationId);
      reply.turnId = turnId;
      this.#byTurn.set(turnId, reply);
    }
    return reply;
  }

  /** Forgets a reply that needs no further care. @param {Reply} reply */
  settle(reply) {
    if (reply.clientMsgId !== null) this.#own.delete(reply.clientMsgId);
    if (reply.turnId !== null) this.#byTurn.delete(reply.turnId);
  }

  /** All of them, oldest first, each once. */
  all() {
    return [...new Set([...this.#byTurn.values(), ...this.unfinished.map(({ reply }) => reply)])];
  }
}
