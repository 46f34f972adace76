export type History = import("./frames.js").History;
export type LiveReplies = import("./live-replies.js").LiveReplies;
export type Sequences = import("./sequences.js").Sequences;
/** @typedef {import("./frames.js").History} History */
/** @typedef {import("./live-replies.js").LiveReplies} LiveReplies */
/** @typedef {import("./sequences.js").Sequences} Sequences */
/**
 * Keeps followed conversations complete. It reads the history at first and after missed events, and resumes after a
 * reconnect. It knows no sockets: it asks, and reports the answers.
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
    /** Takes the newest history, and returns it. Raises ChatError. @param {string} conversationId @returns {Promise<History>} */
    reread(conversationId: string): Promise<History>;
    /** Asks for the newest history, which has everything. @param {string} conversationId */
    refresh(conversationId: string): Promise<void>;
    /**
     * Resumes a conversation on a new connection. True: all missed events follow now. False: the history was read instead, so
     * this client's messages have to be sent again. Null: neither came, as the connection is lost again.
     * @param {string} conversationId
     * @returns {Promise<boolean | null>}
     */
    comeBack(conversationId: string): Promise<boolean | null>;
    /** Takes a page of the branch that is active now. @param {History} page */
    take(page: History): void;
}
