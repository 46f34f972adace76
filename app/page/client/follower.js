import { ChatError } from "./errors.js";
import { isUnfinished } from "./live-replies.js";

/** For how long one refusal may tell this client to wait, in milliseconds: what takes longer is a limit of another kind. */
const LONGEST_WAIT_MS = 60_000;
/** How long to wait where a refusal does not say. */
const WAIT_MS = 1000;

/** @typedef {import("./frames.js").History} History */
/** @typedef {import("./live-replies.js").LiveReplies} LiveReplies */
/** @typedef {import("./sequences.js").Sequences} Sequences */

/**
 * Keeps what is known of the followed conversations whole: history at the first look and after a hole, the missed events
 * after a reconnect. Knows nothing of sockets: it asks, and tells what came of it.
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

  /** Asks for the newest history, which says all. @param {string} conversationId */
  async refresh(conversationId) {
    try {
      await this.#reread(conversationId);
    } catch (error) {
      this.#failed(conversationId, error);
    }
  }

  /**
   * Goes on with a conversation on a new connection. True where every missed event follows now, false where history was
   * asked instead (what this client sent has to be sent again, then); null where neither came: the connection is lost again.
   * @param {string} conversationId
   * @returns {Promise<boolean | null>}
   */
  async comeBack(conversationId) {
    this.#attempts.set(conversationId, Symbol("attempt"));
    try {
      if (await this.#resume(conversationId)) return true;
      this.#live.dropStrangers(conversationId);
      if (this.#followed.has(conversationId)) await this.#reread(conversationId);
      return false;
    } catch (error) {
      this.#failed(conversationId, error);
      return error instanceof ChatError && error.lost ? null : false;
    }
  }

  /** Takes a page that says what the active branch is now. @param {History} page */
  take(page) {
    const sequence = this.#sequences.of(page.conversation_id);
    sequence.align(page.epoch, page.seq);
    sequence.leaf = page.messages.at(-1)?.message_id ?? null;
    this.#live.dropEnded(page.messages);
    this.#catchUp(page);
    this.#emit("history", page);
  }

  /** Whether all that was missed comes now. Where the server can't (a gap, a refusal), history says what it can. @param {string} conversationId */
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

  /** @param {string} conversationId */
  async #reread(conversationId) {
    this.take(await this.#askUntilTaken({ type: "history", conversation_id: conversationId }));
  }

  /**
   * Asks about a conversation, and again when the server says so, until the connection is lost: of a crowd that comes back
   * with one key, some are told to wait.
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
        // Not all at once: they were all told the same time.
        await new Promise((resolve) => setTimeout(resolve, waitMs * (1 + Math.random() / 2)));
        if (this.#attempts.get(frame.conversation_id) !== attempt) {
          throw new ChatError(ChatError.DISCONNECTED, "Another connection asks now.", { retryable: true });
        }
      }
    }
  }

  /**
   * Takes the reply that runs, or whose calls are open, which history tells as far as it has come; messages may wait behind it.
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
    // A lost connection needs no word: the next one asks again.
    if (error.lost) return;
    if (error.code !== "not_found") this.#emit("error", error);
    else if (this.#live.openIn(conversationId).length === 0) this.#emit("missing", { conversationId });
  }
}

/** How long to wait before a request that was refused with `error` is made again, in milliseconds; null: it is not. @param {unknown} error */
function waitOf(error) {
  if (!(error instanceof ChatError) || error.code !== "rate_limited") return null;
  const waitMs = error.retryAfterMs ?? WAIT_MS;
  return waitMs <= LONGEST_WAIT_MS ? waitMs : null;
}
