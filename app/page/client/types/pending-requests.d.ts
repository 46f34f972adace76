/** Requests that wait for the frame which carries their `ref` back. */
export declare class PendingRequests {
    #private;
    /** Whether one of them waits. */
    get waiting(): boolean;
    /**
     * Sends a request over a connection; gives its answer. Rejects with ChatError.
     * @param {import("./link.js").Link} link
     * @param {Record<string, unknown>} frame
     * @returns {Promise<any>}
     */
    ask(link: import("./link.js").Link, frame: Record<string, unknown>): Promise<any>;
    /**
     * Settles the request which `frame` answers. False where it answers none of them.
     * @param {any} frame
     */
    settle(frame: any): boolean;
    /** Fails all of them: their answers were lost with the connection. */
    abandon(): void;
}
