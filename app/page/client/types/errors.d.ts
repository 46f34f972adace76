/** Why a request to the server failed. `code` is one of the protocol's, or one of the client's own below. */
export declare class ChatError extends Error {
    code: string;
    retryable: boolean;
    retryAfterMs: number | null;
    /** The connection was lost before the answer came. */
    static DISCONNECTED: string;
    /** No connection is open, so the request was not sent. */
    static NOT_CONNECTED: string;
    /** The site gave no token for the connection. */
    static NO_TOKEN: string;
    /**
     * @param {string} code
     * @param {string} message
     * @param {{retryable?: boolean, retryAfterMs?: number | null}} [options]
     */
    constructor(code: string, message: string, { retryable, retryAfterMs }?: {
        retryable?: boolean;
        retryAfterMs?: number | null;
    });
    /** Whether there was no connection for an answer. */
    get lost(): boolean;
    /** @param {import("./frames.js").ErrorFrame | (import("./frames.js").Failure & {retryable?: boolean})} frame */
    static fromFrame(frame: import("./frames.js").ErrorFrame | (import("./frames.js").Failure & {
        retryable?: boolean;
    })): ChatError;
}
