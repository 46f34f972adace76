/** Requests that wait for the frame with their `ref`. */
export declare class PendingRequests {
    #private;
    /** Whether a request waits. */
    get waiting(): boolean;
    /**
     * Sends a request over a connection; returns its answer. Rejects with ChatError.
     * @param {import("./link.js").Link} link
     * @param {Record<string, unknown>} frame
     * @returns {Promise<any>}
     */
    ask(link: import("./link.js").Link, frame: Record<string, unknown>): Promise<any>;
    /**
     * Settles the request that `frame` answers. False if it answers none.
     * @param {any} frame
     */
    settle(frame: any): boolean;
    /** Rejects all requests: their answers were lost with the connection. */
    abandon(): void;
}
