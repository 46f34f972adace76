import { Reply, ReplyState } from "./reply.js";

/** @typedef {import("./errors.js").ChatError} ChatError */
/** @typedef {{reply: Reply, frame: {client_msg_id: string} & Record<string, unknown>}} Unfinished */

/** Of so many things that were said the words are kept, until the messages that they became are accepted. */
const SAID = 8;

/** Whether a message of the history is a reply that runs, or whose calls are open. @param {import("./frames.js").Message} message */
export function isUnfinished({ role, status, calls = [] }) {
  return role === "assistant" && (status === "running" || calls.some(({ state }) => state === "waiting" || state === "running"));
}

/**
 * The replies whose end was not seen yet: by turn, and those of this client by the id of their message too.
 * Whatever ends here is told to `tell`.
 */
export class LiveReplies {
  /** @type {Map<string, Unfinished>} */ #own = new Map();
  /** @type {Map<string, Reply>} */ #byTurn = new Map();
  /** @type {Map<string, string>} What was said last, by its item: the messages are named by that. */ #said = new Map();
  #tell;

  /** @param {(reply: Reply) => void} tell */
  constructor(tell) {
    this.#tell = tell;
  }

  /** Own messages with the frames to send them again with, oldest first. */
  get unfinished() {
    return [...this.#own.values()];
  }

  /** Whether something is awaited of the server by itself: calls may wait for people as long as these like. */
  get awaited() {
    return this.#all().some(({ open, state }) => open && state !== ReplyState.CALLING);
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
    const sent = this.#sentOf(frame);
    const reply = sent ?? this.#byTurn.get(frame.turn_id) ?? new Reply(frame.conversation_id);
    reply.accept(frame);
    if (reply.content === null && frame.follows === undefined) reply.hear(this.#said);
    this.#byTurn.set(frame.turn_id, reply);
    return reply;
  }

  /** Takes what was said: it is the message of a turn, which may have begun already. @param {import("./frames.js").Heard} frame */
  heard({ conversation_id: conversationId, item, text }) {
    this.#said.set(item, text);
    if (this.#said.size > SAID) this.#said.delete([...this.#said.keys()][0]);
    for (const reply of this.openIn(conversationId)) {
      if (reply.content === null && reply.hear(this.#said)) this.#tell(reply);
    }
  }

  /**
   * This client's own reply that was accepted. One that follows calls has an object of its own, and ends the one before.
   * @param {import("./frames.js").Accepted} frame
   */
  #sentOf({ client_msg_id: clientMsgId, follows }) {
    const sent = this.ownOf(clientMsgId);
    if (follows === undefined) return sent;
    const before = this.#byTurn.get(follows);
    if (before?.state === ReplyState.CALLING) this.#conclude(before);
    // It ended while this client was away; history has it.
    if (sent !== undefined && sent !== before) this.withdraw(sent);
    return undefined;
  }

  /** @param {Reply} reply */
  #conclude(reply) {
    reply.conclude();
    this.#settle(reply);
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

  /** Takes the end of a reply; one that called stays, until the reply that follows begins. @param {Reply} reply @param {import("./frames.js").Done} frame */
  finish(reply, frame) {
    reply.finish(frame);
    if (reply.state !== ReplyState.CALLING) return this.#settle(reply);
    // It needs not be sent again, but its calls are still to be heard of.
    this.#disown(reply);
    this.#tell(reply);
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

  /** The stop of a conversation's replies was refused: they go on. @param {string} conversationId */
  release(conversationId) {
    for (const reply of this.openIn(conversationId).filter(({ stopping }) => stopping)) {
      reply.release();
      this.#tell(reply);
    }
  }

  /** What others sent can't be sent again from here; history tells what became of it. @param {string} conversationId */
  dropStrangers(conversationId) {
    for (const reply of this.openIn(conversationId)) {
      if (!reply.own || reply.state === ReplyState.CALLING) this.withdraw(reply);
    }
  }

  /** Lets go of replies whose end was missed: history has them whole. @param {import("./frames.js").Message[]} messages */
  dropEnded(messages) {
    for (const message of messages) {
      const ended = message.role === "assistant" && !isUnfinished(message);
      const reply = ended ? this.#byTurn.get(message.turn_id) : undefined;
      if (reply !== undefined) this.withdraw(reply);
    }
  }

  /** Marks that a connection was lost: what comes next comes otherwise than as it is made. */
  pause() {
    for (const reply of this.#all()) reply.pause();
  }

  /** @param {Reply} reply */
  #settle(reply) {
    this.#disown(reply);
    if (reply.turnId !== null) this.#byTurn.delete(reply.turnId);
    this.#tell(reply);
  }

  /** @param {Reply} reply */
  #disown(reply) {
    if (reply.clientMsgId !== null) this.#own.delete(reply.clientMsgId);
  }

  #all() {
    return [...new Set([...this.#byTurn.values(), ...this.unfinished.map(({ reply }) => reply)])];
  }
}
