import { ChatError } from "./errors.js";
import { isUnfinished } from "./live-replies.js";

/** The longest wait that a refusal may ask for, in milliseconds. Longer waits are limits of another kind. */
const LONGEST_WAIT_MS = 60_000;
/** The wait if a refusal does not name one. */
const WAIT_MS = 1000;

/** @typedef {import("./frames.js").History} History */
/** @typedef {import("./frames.js").Accepted} Accepted */
/** @typedef {import("./frames.js").Delta} Delta */
/** @typedef {import("./frames.js").Done} Done */
/** @typedef {import("./frames.js").ToolCall} ToolCall */
/** @typedef {import("./frames.js").ToolState} ToolState */
/** @typedef {import("./call.js").Call} Call */
/** @typedef {import("./reply.js").Reply} Reply */

/**
 * Keeps followed conversations complete: it applies the journalled events of turns to their replies, and counts them. It reads
 * the history at first, after missed events, and if a reply's text differs from what the server keeps; and it resumes after a
 * reconnect. It knows no sockets: it asks, and reports the answers.
 */
export class Follower {
  /** @type {Set<string>} */ #followed = new Set();
  /** @type {Map<string, symbol>} The newest attempt to come back to each conversation. */ #attempts = new Map();
  /** @type {Map<string, Sequence>} The conversations' journals, as far as they are known. */ #sequences = new Map();
  #live;
  #ask;
  #emit;

  /**
   * @param {object} parts
   * @param {import("./live-replies.js").LiveReplies} parts.live
   * @param {(frame: Record<string, unknown>) => Promise<any>} parts.ask   rejects with ChatError
   * @param {(type: string, detail: unknown) => void} parts.emit
   */
  constructor({ live, ask, emit }) {
    this.#live = live;
    this.#ask = ask;
    this.#emit = emit;
  }

  /** The conversations that are followed. */
  get followed() {
    return [...this.#followed];
  }

  /** @param {string} conversationId */
  follow(conversationId) {
    this.#followed.add(conversationId);
  }

  /** @param {string} conversationId */
  leave(conversationId) {
    this.#followed.delete(conversationId);
  }

  /** Takes that a conversation is gone. @param {string} conversationId */
  forget(conversationId) {
    this.leave(conversationId);
    this.#sequences.delete(conversationId);
  }

  /** Takes the newest history, and returns it. Raises ChatError. @param {string} conversationId @returns {Promise<History>} */
  async reread(conversationId) {
    const page = await this.#askUntilTaken({ type: "history", conversation_id: conversationId });
    this.take(page);
    return page;
  }

  /** Asks for the newest history, which has everything. @param {string} conversationId */
  async refresh(conversationId) {
    try {
      await this.reread(conversationId);
    } catch (error) {
      this.#failed(conversationId, error);
    }
  }

  /**
   * Resumes a conversation on a new connection. True: all missed events follow now. False: the history was read instead, so
   * this client's messages have to be sent again. Null: neither came, as the connection is lost again.
   * @param {string} conversationId
   * @returns {Promise<boolean | null>}
   */
  async comeBack(conversationId) {
    this.#attempts.set(conversationId, Symbol("attempt"));
    try {
      if (await this.#resume(conversationId)) return true;
      this.#live.dropStrangers(conversationId);
      if (this.#followed.has(conversationId)) await this.reread(conversationId);
      return false;
    } catch (error) {
      this.#failed(conversationId, error);
      return error instanceof ChatError && error.lost ? null : false;
    }
  }

  /** Takes a page of the branch that is active now. @param {History} page */
  take(page) {
    const sequence = this.#sequenceOf(page.conversation_id);
    sequence.align(page.epoch, page.seq);
    sequence.leaf = page.messages.at(-1)?.message_id ?? null;
    this.#live.dropEnded(page.messages);
    this.#catchUp(page);
    this.#emit("history", page);
  }

  /** Whether all missed events come now. If the server can't send them (a gap, a refusal), the history is read. @param {string} conversationId */
  async #resume(conversationId) {
    const point = this.#sequenceOf(conversationId).point;
    if (point === null || !this.#followed.has(conversationId)) return false;
    try {
      const answer = await this.#askUntilTaken({ type: "resume", conversation_id: conversationId, ...point });
      return answer.type === "resumed";
    } catch (error) {
      if (!(error instanceof ChatError) || error.lost) throw error;
      return false;
    }
  }

  /**
   * Asks about a conversation, and again when the server says so, until the connection is lost. If many clients of one key
   * come back together, some are told to wait.
   * @param {{type: string, conversation_id: string} & Record<string, unknown>} frame
   * @returns {Promise<any>}
   */
  async #askUntilTaken(frame) {
    const attempt = this.#attempts.get(frame.conversation_id);
    for (;;) {
      try {
        return await this.#ask(frame);
      } catch (error) {
        const waitMs = waitOf(error);
        if (waitMs === null) throw error;
        // Clients were all told the same time, so each adds a random wait.
        await new Promise((resolve) => setTimeout(resolve, waitMs * (1 + Math.random() / 2)));
        if (this.#attempts.get(frame.conversation_id) !== attempt) {
          throw new ChatError(ChatError.DISCONNECTED, "Another connection asks now.", { retryable: true });
        }
      }
    }
  }

  /**
   * Takes the reply that runs or has open calls, as far as the history has it. Messages may wait behind it.
   * @param {History} page
   */
  #catchUp({ conversation_id: conversationId, messages }) {
    const message = messages.findLast(isUnfinished);
    if (message === undefined) return;
    const reply = this.#live.running(conversationId, message.turn_id);
    const source = messages.findLast(({ message_id: id, interprets }) => id === message.parent_id && interprets);
    reply.catchUp(message);
    if (source !== undefined) reply.catchUpSource(source);
    this.#emit("reply", { reply });
  }

  /**
   * @param {string} conversationId
   * @param {unknown} error
   */
  #failed(conversationId, error) {
    if (!(error instanceof ChatError)) throw error;
    // A lost connection is not reported here: the next one asks again.
    if (error.lost) return;
    if (error.code !== "not_found") this.#emit("error", error);
    else if (this.#live.openIn(conversationId).length === 0) this.#emit("missing", { conversationId });
  }

  /** @param {Accepted} frame */
  accepted(frame) {
    const reply = this.#live.accept(frame);
    this.follow(frame.conversation_id);
    this.#sequenceOf(frame.conversation_id).within(frame.epoch);
    if (frame.duplicate !== true) {
      this.#count(frame);
      this.#noteBranch(reply, frame);
    }
    this.#emit("reply", { reply });
  }

  /** @param {Delta} frame */
  delta(frame) {
    const reply = this.#live.running(frame.conversation_id, frame.turn_id);
    this.#count(frame);
    reply.append(frame, performance.now());
    this.#emit("reply", { reply });
  }

  /** @param {import("./frames.js").Reasoning} frame */
  reasoning(frame) {
    const reply = this.#live.running(frame.conversation_id, frame.turn_id);
    this.#count(frame);
    reply.think(frame, performance.now());
    this.#emit("reply", { reply });
  }

  /** @param {import("./frames.js").SourceText} frame */
  source(frame) {
    const reply = this.#live.running(frame.conversation_id, frame.turn_id);
    this.#count(frame);
    if (!reply.grow(frame)) void this.refresh(frame.conversation_id);
    this.#emit("reply", { reply });
  }

  /** @param {ToolCall} frame */
  toolCall(frame) {
    const reply = this.#live.running(frame.conversation_id, frame.turn_id);
    this.#count(frame);
    this.#emitCall(reply, reply.call(frame, performance.now()));
  }

  /** @param {ToolState} frame */
  toolState(frame) {
    this.#count(frame);
    const reply = this.#live.ofTurn(frame.turn_id);
    const call = reply?.callOf(frame.call_id);
    // A call that is unknown here came before this client looked; the history has it.
    if (reply === undefined || call === undefined) return void this.refresh(frame.conversation_id);
    call.take(frame);
    this.#emitCall(reply, call);
  }

  /** @param {Done} frame */
  done(frame) {
    this.#count(frame);
    const reply = this.#live.ofTurn(frame.turn_id);
    if (reply !== undefined) this.#live.finish(reply, frame);
    if (frame.removed === true) this.#remove(frame, reply);
    else {
      this.#sequenceOf(frame.conversation_id).leaf = frame.message_id;
      if (reply !== undefined) void this.#check(reply);
    }
  }

  /** @param {{conversation_id: string, turn_id: string, first_seq?: number, seq: number}} frame */
  removed(frame) {
    this.#count(frame);
    this.#remove(frame, undefined);
  }

  /** @param {import("./frames.js").Status} frame */
  status(frame) {
    const reply = this.#live.ofTurn(frame.turn_id);
    if (reply === undefined) return;
    const call = reply.callOf(frame.call_id ?? "");
    if (frame.state !== "tool") reply.status = frame;
    else if (call === undefined) return;
    else call.note(frame);
    if (call === undefined) this.#emit("reply", { reply });
    else this.#emitCall(reply, call);
  }

  /** @param {Reply} reply @param {Call} call */
  #emitCall(reply, call) {
    this.#emit("call", { reply, call });
    this.#emit("reply", { reply });
  }

  /** @param {{conversation_id: string, first_seq?: number, seq: number}} frame */
  #count({ conversation_id: conversationId, first_seq: firstSeq, seq }) {
    if (!this.#sequenceOf(conversationId).take(firstSeq ?? seq, seq)) void this.refresh(conversationId);
  }

  /** @param {string} conversationId */
  #sequenceOf(conversationId) {
    let sequence = this.#sequences.get(conversationId);
    if (sequence === undefined) this.#sequences.set(conversationId, (sequence = new Sequence()));
    return sequence;
  }

  /**
   * A message that does not follow the last one begins a branch. The history tells its siblings.
   * @param {Reply} reply
   * @param {Accepted} frame
   */
  #noteBranch(reply, frame) {
    const { leaf } = this.#sequenceOf(frame.conversation_id);
    // A reply that is continued has text already, which the history has.
    if (frame.continues !== undefined) return void this.refresh(frame.conversation_id);
    if (leaf === undefined || leaf === (frame.follows === undefined ? frame.parent_id : frame.message_id)) return;
    reply.branches = true;
    void this.refresh(frame.conversation_id);
  }

  /** @param {Reply} reply */
  async #check(reply) {
    const doubtful = reply.branches || reply.holed || (await reply.verified()) === false;
    if (doubtful) await this.refresh(reply.conversationId);
  }

  /**
   * If the exchange had more turns than this one, or if that is unknown here, the history tells what is left.
   * @param {{conversation_id: string, turn_id: string}} frame
   * @param {Reply | undefined} reply
   */
  #remove({ conversation_id: conversationId, turn_id: turnId }, reply) {
    this.#sequenceOf(conversationId).leaf = undefined;
    this.#emit("removed", { conversationId, turnId });
    if (reply === undefined || reply.follows !== null) void this.refresh(conversationId);
  }
}

/** The wait before a request that was refused with `error` is repeated, in milliseconds; null if it isn't. @param {unknown} error */
function waitOf(error) {
  if (!(error instanceof ChatError) || error.code !== "rate_limited") return null;
  const waitMs = error.retryAfterMs ?? WAIT_MS;
  return waitMs <= LONGEST_WAIT_MS ? waitMs : null;
}

/**
 * What is known of a conversation's journal: its epoch, the last event seen, and the last message of its active branch.
 * Events are numbered without holes. One may cover several numbers, `firstSeq` to `seq`.
 */
class Sequence {
  /** @type {string | null} */ #epoch = null;
  /** @type {number | null} */ #seq = null;
  /** @type {string | null | undefined} The message that the next one would follow; undefined if it is unknown. */
  leaf = undefined;
  #holed = false;

  /**
   * Where a new connection can resume; null if events before that were missed, or none was seen.
   * @returns {{epoch: string, after_seq: number} | null}
   */
  get point() {
    if (this.#epoch === null || this.#seq === null || this.#holed) return null;
    return { epoch: this.#epoch, after_seq: this.#seq };
  }

  /**
   * Takes an event. False: events before it were missed.
   * Events that were seen before (a replay after a reconnect) are no gap.
   * @param {number} firstSeq
   * @param {number} seq
   */
  take(firstSeq, seq) {
    const whole = this.#seq === null || firstSeq <= this.#seq + 1;
    this.#seq = Math.max(this.#seq ?? 0, seq);
    this.#holed ||= !whole;
    return whole;
  }

  /** Learns the epoch of the events seen. @param {string} epoch */
  within(epoch) {
    this.#epoch = epoch;
  }

  /**
   * Takes a position up to which the server sent everything. A new epoch begins a new count.
   * @param {string} epoch
   * @param {number} seq
   */
  align(epoch, seq) {
    this.#seq = epoch === this.#epoch ? Math.max(this.#seq ?? 0, seq) : seq;
    this.#epoch = epoch;
    this.#holed = false;
  }
}
