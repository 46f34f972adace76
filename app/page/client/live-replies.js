import { Reply, ReplyState } from "./reply.js";

/** @typedef {import("./errors.js").ChatError} ChatError */
/** @typedef {{reply: Reply, frame: {client_msg_id: string} & Record<string, unknown>}} Unfinished */

/** The most spoken texts that are kept until their messages are accepted. */
const MAX_TRANSCRIPTS = 8;

/** Whether a message of the history is a reply that runs, or whose calls are open. @param {import("./frames.js").Message} message */
export function isUnfinished({ role, status, calls = [] }) {
  return role === "assistant" && (status === "running" || calls.some(({ state }) => state === "waiting" || state === "running"));
}

/**
 * The replies whose end was not seen yet, by turn. Those of this client are also found by the id of their message.
 * `tell` is called for each that ends here.
 */
export class LiveReplies {
  /** @type {Map<string, Unfinished>} */ #own = new Map();
  /** @type {Map<string, Reply>} */ #byTurn = new Map();
  /** @type {Map<string, string>} What was said last, by its utterance, which messages name. */ #transcripts = new Map();
  #notify;

  /** @param {(reply: Reply) => void} tell */
  constructor(tell) {
    this.#notify = tell;
  }

  /** This client's messages, oldest first, with their frames, so that they can be sent again. */
  get unfinished() {
    return [...this.#own.values()];
  }

  /** The replies of conversations that are being stopped as a whole. */
  get stopping() {
    return this.#all().filter(({ stopping, alone }) => stopping && !alone);
  }

  /** Whether the server owes something. A call that waits for a person does not count. */
  get awaited() {
    return this.#all().some(({ open, state }) => open && state !== ReplyState.CALLING);
  }

  /** Adds a message of this client. @param {Unfinished} message */
  add({ reply, frame }) {
    this.#own.set(frame.client_msg_id, { reply, frame });
    this.#notify(reply);
  }

  /** @param {string} clientMsgId */
  ownOf(clientMsgId) {
    return this.#own.get(clientMsgId)?.reply;
  }

  /** @param {string} turnId */
  ofTurn(turnId) {
    return this.#byTurn.get(turnId);
  }

  /** The replies of a conversation that have not ended, oldest first. @param {string} conversationId */
  openIn(conversationId) {
    return this.#all().filter((reply) => reply.conversationId === conversationId && reply.open);
  }

  /** The reply of an accepted message; a new one if another device sent the message. @param {import("./frames.js").Accepted} frame */
  accept(frame) {
    const sent = this.#sentOf(frame);
    const reply = sent ?? this.#byTurn.get(frame.turn_id) ?? new Reply(frame.conversation_id);
    reply.accept(frame);
    if (reply.content === null && frame.follows === undefined) reply.hear(this.#transcripts);
    this.#byTurn.set(frame.turn_id, reply);
    return reply;
  }

  /** Takes spoken text. It is the message of a turn, which may have begun already. @param {import("./frames.js").Transcript} frame */
  transcribe({ conversation_id: conversationId, utterance_id: utteranceId, text }) {
    this.#transcripts.set(utteranceId, text);
    if (this.#transcripts.size > MAX_TRANSCRIPTS) this.#transcripts.delete([...this.#transcripts.keys()][0]);
    for (const reply of this.openIn(conversationId)) {
      if (reply.content === null && reply.hear(this.#transcripts)) this.#notify(reply);
    }
  }

  /**
   * The reply to a message of this client. One that follows calls is an object of its own, and ends the one before.
   * @param {import("./frames.js").Accepted} frame
   */
  #sentOf({ client_msg_id: clientMsgId, follows }) {
    const sent = this.ownOf(clientMsgId);
    if (follows === undefined) return sent;
    const before = this.#byTurn.get(follows);
    if (before?.state === ReplyState.CALLING) {
      before.conclude();
      this.#settle(before);
    }
    // It ended while this client was away; the history has it.
    if (sent !== undefined && sent !== before) this.withdraw(sent);
    return undefined;
  }

  /**
   * The reply of a running turn. It may be new here, as it may have begun before this client came.
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

  /** Takes the end of a reply. A reply with calls stays until the one that follows begins. @param {Reply} reply @param {import("./frames.js").Done} frame */
  finish(reply, frame) {
    reply.finish(frame);
    if (reply.state !== ReplyState.CALLING) return this.#settle(reply);
    // It need not be sent again, but events of its calls are still to come.
    this.#disown(reply);
    this.#notify(reply);
  }

  /**
   * Shows no more of the reply that runs in a conversation: a message interrupts it. Returns that reply; null if none runs.
   * A reply that is already stopping keeps what it shows: `seenOff` does not count then.
   * @param {string} conversationId
   * @param {number} [seenOff]
   */
  interrupt(conversationId, seenOff) {
    const isRunning = (/** @type {Reply} */ { state, sent, own }) => state !== ReplyState.CALLING && (sent || !own);
    const running = this.openIn(conversationId).find(isRunning);
    if (running === undefined) return null;
    this.hold(running, running.stopping ? running.visibleChars : (seenOff ?? running.visibleChars), true);
    return running;
  }

  /** Shows no more of a reply, as in `Reply.hold`. @param {Reply} reply @param {number} chars @param {boolean} [alone] */
  hold(reply, chars, alone) {
    reply.hold(chars, alone);
    this.#notify(reply);
  }

  /** @param {Reply} reply @param {ChatError} error */
  refuse(reply, error) {
    this.#letGo(reply);
    reply.refuse(error);
    this.#settle(reply);
  }

  /** @param {Reply} reply */
  withdraw(reply) {
    reply.withdraw();
    this.#settle(reply);
  }

  /** Takes that the stop of a conversation's replies was refused: they go on. @param {string} conversationId */
  release(conversationId) {
    for (const reply of this.openIn(conversationId)) this.releaseOne(reply);
  }

  /** Takes that the stop of one reply was refused: it goes on. @param {Reply} reply */
  releaseOne(reply) {
    if (!reply.stopping) return;
    reply.release();
    this.#notify(reply);
  }

  /** Withdraws replies that can't be sent again from here: of others' messages, or with open calls. The history has them. @param {string} conversationId */
  dropStrangers(conversationId) {
    for (const reply of this.openIn(conversationId)) {
      if (!reply.own || reply.state === ReplyState.CALLING) this.withdraw(reply);
    }
  }

  /** Forgets replies whose end was missed: the history has all of them. @param {import("./frames.js").Message[]} messages */
  dropEnded(messages) {
    for (const message of messages) {
      const ended = message.role === "assistant" && !isUnfinished(message);
      const reply = ended ? this.#byTurn.get(message.turn_id) : undefined;
      if (reply !== undefined) this.withdraw(reply);
    }
  }

  /** Lets the reply go on that a message interrupts, unless another message interrupts it too. @param {Reply} reply */
  #letGo(reply) {
    const held = reply.interrupts;
    if (held === null) return;
    const others = this.openIn(held.conversationId).filter((other) => other !== reply && other.interrupts === held);
    if (others.length === 0) this.releaseOne(held);
  }

  /** @param {Reply} reply */
  #settle(reply) {
    this.#disown(reply);
    if (reply.turnId !== null) this.#byTurn.delete(reply.turnId);
    this.#notify(reply);
  }

  /** @param {Reply} reply */
  #disown(reply) {
    if (reply.clientMsgId !== null) this.#own.delete(reply.clientMsgId);
  }

  #all() {
    return [...new Set([...this.#byTurn.values(), ...this.unfinished.map(({ reply }) => reply)])];
  }
}
