/**
 * What a new connection sends for each conversation: it asks for missed events or the history first, then sends what still
 * waits here.
 */
export declare class Comeback {
    #private;
    /**
     * @param {object} parts
     * @param {import("./follower.js").Follower} parts.follower
     * @param {import("./live-replies.js").LiveReplies} parts.live
     * @param {import("./outgoing.js").Outgoing} parts.outgoing
     * @param {import("./stops.js").Stops} parts.stops
     * @param {(frame: Record<string, unknown>) => Promise<any>} parts.ask   rejects with ChatError
     */
    constructor({ follower, live, outgoing, stops, ask }: {
        follower: import("./follower.js").Follower;
        live: import("./live-replies.js").LiveReplies;
        outgoing: import("./outgoing.js").Outgoing;
        stops: import("./stops.js").Stops;
        ask: (frame: Record<string, unknown>) => Promise<any>;
    });
    /** Call when a connection is open. */
    begin(): void;
}
