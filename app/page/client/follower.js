import { ChatError } from "./errors.js";
import { isUnfinished } from "./live-replies.js";

/** The longest wait that a refusal may ask for, in milliseconds. Longer waits are limits of another kind. */
const LONGEST_WAIT_MS = 60_000;
/** The wait if a refusal does not name one. */
const WAIT_MS = 1000;

/** @typedef {import("./frames.js").History} History */
/** @typedef {import("./live-replies.js").LiveReplies} LiveReplies */
/** @typedef {import("./sequences.js").Sequences} Sequences */

/**
 * Keeps followed conversations complete. It reads the history at first and after missed events, and resumes after a
 * reconnect. It knows no sockets: it asks, and reports the answers.
 */
export class Follower {
  /** @type {Set<string>} */ #followed = new Set();
  /** @type {Map<string, symbol>} The newest attempt to come back to each conversation. */ #attempts = new Map();
  #sequences;
  #live;
  #ask;
  #emit;

  /**
   * @param {object} parts
   * @param {Sequences} parts.sequences
   * @param {LiveReplies} parts.live
   * @param {(frame: Record<string, unknown>) => Promise<any>} parts.ask   rejects with ChatError
   * @param {(type: string, detail: unknown) => void} parts.emit
   */
  constructor({ sequences, live, ask, emit }) {
    this.#sequences = sequences;
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
    const sequence = this.#sequences.of(page.conversation_id);
    sequence.align(page.epoch, page.seq);
    sequence.leaf = page.messages.at(-1)?.message_id ?? null;
    this.#live.dropEnded(page.messages);
    this.#catchUp(page);
    this.#emit("history", page);
  }

  /** Whether all missed events come now. If the server can't send them (a gap, a refusal), the history is read. @param {string} conversationId */
  async #resume(conversationId) {
    const point = this.#sequences.of(conversationId).point;
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
}

/** The wait before a request that was refused with `error` is repeated, in milliseconds; null if it isn't. @param {unknown} error */
function waitOf(error) {
  if (!(error instanceof ChatError) || error.code !== "rate_limited") return null;
  const waitMs = error.retryAfterMs ?? WAIT_MS;
  return waitMs <= LONGEST_WAIT_MS ? waitMs : null;
}
