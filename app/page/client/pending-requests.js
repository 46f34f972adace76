import { ChatError } from "./errors.js";

/** Requests that wait for the frame with their `ref`. */
export class PendingRequests {
  /** @type {Map<string, {resolve: (frame: any) => void, reject: (error: ChatError) => void}>} */
  #waiting = new Map();
  #made = 0;

  /** Whether a request waits. */
  get waiting() {
    return this.#waiting.size > 0;
  }

  /**
   * Sends a request over a connection; returns its answer. Rejects with ChatError.
   * @param {import("./link.js").Link} link
   * @param {Record<string, unknown>} frame
   * @returns {Promise<any>}
   */
  async ask(link, frame) {
    if (!link.connected) throw new ChatError(ChatError.NOT_CONNECTED, "There is no connection.", { retryable: true });
    this.#made += 1;
    const ref = `r${this.#made}`;
    const answer = new Promise((resolve, reject) => this.#waiting.set(ref, { resolve, reject }));
    link.send({ ...frame, ref });
    return answer;
  }

  /**
   * Settles the request that `frame` answers. False if it answers none.
   * @param {any} frame
   */
  settle(frame) {
    const request = this.#waiting.get(frame.ref);
    if (request === undefined) return false;
    this.#waiting.delete(frame.ref);
    if (frame.type === "error") request.reject(ChatError.fromFrame(frame));
    else request.resolve(frame);
    return true;
  }

  /** Rejects all requests: their answers were lost with the connection. */
  abandon() {
    const lost = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const request of lost) {
      request.reject(new ChatError(ChatError.DISCONNECTED, "The connection was lost.", { retryable: true }));
    }
  }
}
