export type History = import("./frames.js").History;
export type LiveReplies = import("./live-replies.js").LiveReplies;
export type Sequences = import("./sequences.js").Sequences;
/** @typedef {import("./frames.js").History} History */
/** @typedef {import("./live-replies.js").LiveReplies} LiveReplies */
/** @typedef {import("./sequences.js").Sequences} Sequences */
/**
 * Keeps what is known of the followed conversations whole: history at the first look and after a hole, the missed events
 * after a reconnect. Knows nothing of sockets: it asks, and tells what came of it.
 */
export declare class Follower {
    #private;
    /**
     * @param {object} parts
     * @param {Sequences} parts.sequences
     * @param {LiveReplies} parts.live
     * @param {(frame: Record<string, unknown>) => Promise<any>} parts.ask   rejects with ChatError
     * @param {(type: string, detail: unknown) => void} parts.emit
     */
    constructor({ sequences, live, ask, emit }: {
        sequences: Sequences;
        live: LiveReplies;
        ask: (frame: Record<string, unknown>) => Promise<any>;
        emit: (type: string, detail: unknown) => void;
    });
    /** The conversations that are followed. */
    get followed(): string[];
    /** @param {string} conversationId */
    follow(conversationId: string): void;
    /** @param {string} conversationId */
    leave(conversationId: string): void;
    /** Asks for the newest history, which says all. @param {string} conversationId */
    refresh(conversationId: string): Promise<void>;
    /**
     * Goes on with a conversation on a new connection. True where every missed event follows now, false where history was
     * asked instead (what this client sent has to be sent again, then); null where neither came: the connection is lost again.
     * @param {string} conversationId
     * @returns {Promise<boolean | null>}
     */
    comeBack(conversationId: string): Promise<boolean | null>;
    /** Takes a page that says what the active branch is now. @param {History} page */
    take(page: History): void;
}
