import { Reply } from "./reply.js";

/** @typedef {import("./errors.js").ChatError} ChatError */
/** @typedef {{reply: Reply, frame: {client_msg_id: string} & Record<string, unknown>}} Unfinished */

/**
 * The replies whose end was not seen yet: by turn, and those of this client by the id of their message too.
 * Whatever ends here is told to `tell`.
 */
export class LiveReplies {
  /** @type {Map<string, Unfinished>} */ #own = new Map();
  /** @type {Map<string, Reply>} */ #byTurn = new Map();
  #tell;

  /** @param {(reply: Reply) => void} tell */
  constructor(tell) {
    this.#tell = tell;
  }

  /** Own messages with the frames to send them again with, oldest first. */
  get unfinished() {
    return [...this.#own.values()];
  }

  /** Adds a message of this client. @param {Unfinished} message */
  add({ reply, frame }) {
    this.#own.set(frame.client_msg_id, { reply, frame });
    this.#tell(reply);
  }

  /** @param {string} clientMsgId */
  ownOf(clientMsgId) {
    return this.#own.get(clientMsgId)?.reply;
  }

  /** @param {string} turnId */
  ofTurn(turnId) {
    return this.#byTurn.get(turnId);
  }

  /** The replies of a conversation whose end is still to come, oldest first. @param {string} conversationId */
  openIn(conversationId) {
    return this.#all().filter((reply) => reply.conversationId === conversationId && reply.open);
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

  /** Takes the end of a reply. @param {Reply} reply @param {import("./frames.js").Done} frame */
  finish(reply, frame) {
    reply.finish(frame);
    this.#settle(reply);
  }

  /** @param {Reply} reply @param {ChatError} error */
  refuse(reply, error) {
    reply.refuse(error);
    this.#settle(reply);
  }

  /** @param {Reply} reply */
  withdraw(reply) {
    reply.withdraw();
    this.#settle(reply);
  }

  /** What others sent can't be sent again from here; history tells what became of it. @param {string} conversationId */
  dropStrangers(conversationId) {
    for (const reply of this.openIn(conversationId)) if (!reply.own) this.withdraw(reply);
  }

  /** Lets go of replies whose end was missed: history has them whole. @param {import("./frames.js").Message[]} messages */
  dropEnded(messages) {
    for (const { role, status, turn_id: turnId } of messages) {
      const reply = role === "assistant" && status !== "running" ? this.#byTurn.get(turnId) : undefined;
      if (reply !== undefined) this.withdraw(reply);
    }
  }

  /** Marks that a connection was lost: what comes next comes otherwise than as it is made. */
  pause() {
    for (const reply of this.#all()) reply.pause();
  }

  /** @param {Reply} reply */
  #settle(reply) {
    if (reply.clientMsgId !== null) this.#own.delete(reply.clientMsgId);
    if (reply.turnId !== null) this.#byTurn.delete(reply.turnId);
    this.#tell(reply);
  }

  #all() {
    return [...new Set([...this.#byTurn.values(), ...this.unfinished.map(({ reply }) => reply)])];
  }
}
