/** @typedef {import("./frames.js").Accepted} Accepted */
/** @typedef {import("./frames.js").Delta} Delta */
/** @typedef {import("./frames.js").Done} Done */
/** @typedef {import("./frames.js").ToolCall} ToolCall */
/** @typedef {import("./frames.js").ToolState} ToolState */
/** @typedef {import("./call.js").Call} Call */
/** @typedef {import("./reply.js").Reply} Reply */

/**
 * Applies the journalled events of turns to their replies and to what is known of their conversation's journal.
 * The history is read again after missed events, or if a reply's text differs from what the server keeps.
 */
export class TurnEvents {
  #live;
  #sequences;
  #follower;
  #emit;

  /**
   * @param {object} parts
   * @param {import("./live-replies.js").LiveReplies} parts.live
   * @param {import("./sequences.js").Sequences} parts.sequences
   * @param {import("./follower.js").Follower} parts.follower
   * @param {(type: string, detail: unknown) => void} parts.emit
   */
  constructor({ live, sequences, follower, emit }) {
    this.#live = live;
    this.#sequences = sequences;
    this.#follower = follower;
    this.#emit = emit;
  }

  /** @param {Accepted} frame */
  accepted(frame) {
    const reply = this.#live.accept(frame);
    this.#follower.follow(frame.conversation_id);
    this.#sequences.of(frame.conversation_id).within(frame.epoch);
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
    if (!reply.grow(frame)) void this.#follower.refresh(frame.conversation_id);
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
    if (reply === undefined || call === undefined) return void this.#follower.refresh(frame.conversation_id);
    call.take(frame);
    this.#emitCall(reply, call);
  }

  /** @param {Done} frame */
  done(frame) {
    this.#count(frame);
    const reply = this.#live.ofTurn(frame.turn_id);
    if (reply !== undefined) this.#live.finish(reply, frame);
    if (frame.removed === true) this.#remove(frame, reply);
    else this.#ended(reply, frame);
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
  #count(frame) {
    if (!this.#sequences.take(frame)) void this.#follower.refresh(frame.conversation_id);
  }

  /**
   * A message that does not follow the last one begins a branch. The history tells its siblings.
   * @param {Reply} reply
   * @param {Accepted} frame
   */
  #noteBranch(reply, frame) {
    const { leaf } = this.#sequences.of(frame.conversation_id);
    // A reply that is continued has text already, which the history has.
    if (frame.continues !== undefined) return void this.#follower.refresh(frame.conversation_id);
    if (leaf === undefined || leaf === (frame.follows === undefined ? frame.parent_id : frame.message_id)) return;
    reply.branches = true;
    void this.#follower.refresh(frame.conversation_id);
  }

  /** @param {Reply | undefined} reply @param {Done} frame */
  #ended(reply, frame) {
    this.#sequences.of(frame.conversation_id).leaf = frame.message_id;
    if (reply !== undefined) void this.#check(reply);
  }

  /** @param {Reply} reply */
  async #check(reply) {
    const doubtful = reply.branches || reply.holed || (await reply.verified()) === false;
    if (doubtful) await this.#follower.refresh(reply.conversationId);
  }

  /**
   * If the exchange had more turns than this one, or if that is unknown here, the history tells what is left.
   * @param {{conversation_id: string, turn_id: string}} frame
   * @param {Reply | undefined} reply
   */
  #remove({ conversation_id: conversationId, turn_id: turnId }, reply) {
    this.#sequences.of(conversationId).leaf = undefined;
    this.#emit("removed", { conversationId, turnId });
    if (reply === undefined || reply.follows !== null) void this.#follower.refresh(conversationId);
  }
}
