/** Why a request to the server failed. `code` is one of the protocol's, or one of the client's own below. */
export class ChatError extends Error {
  /** The connection was lost before the answer came. */
  static DISCONNECTED = "disconnected";
  /** No connection is open, so the request was not sent. */
  static NOT_CONNECTED = "not_connected";
  /** The site gave no token for the connection. */
  static NO_TOKEN = "no_token";

  /**
   * @param {string} code
   * @param {string} message
   * @param {{retryable?: boolean, retryAfterMs?: number | null}} [options]
   */
  constructor(code, message, { retryable = false, retryAfterMs = null } = {}) {
    super(message);
    this.name = "ChatError";
    this.code = code;
    this.retryable = retryable;
    this.retryAfterMs = retryAfterMs;
  }

  /** Whether there was no connection for an answer. */
  get lost() {
    return this.code === ChatError.DISCONNECTED || this.code === ChatError.NOT_CONNECTED;
  }

  /** @param {import("./frames.js").ErrorFrame | (import("./frames.js").Failure & {retryable?: boolean})} frame */
  static fromFrame(frame) {
    const options = { retryable: frame.retryable ?? false, retryAfterMs: frame.retry_after_ms ?? null };
    return new ChatError(frame.code, frame.message, options);
  }
}
