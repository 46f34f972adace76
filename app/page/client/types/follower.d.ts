export type History = import("./frames.js").History;
export type Accepted = import("./frames.js").Accepted;
export type Delta = import("./frames.js").Delta;
export type Done = import("./frames.js").Done;
export type ToolCall = import("./frames.js").ToolCall;
export type ToolState = import("./frames.js").ToolState;
export type Call = import("./call.js").Call;
export type Reply = import("./reply.js").Reply;
/** @typedef {import("./frames.js").History} History */
/** @typedef {import("./frames.js").Accepted} Accepted */
/** @typedef {import("./frames.js").Delta} Delta */
/** @typedef {import("./frames.js").Done} Done */
/** @typedef {import("./frames.js").ToolCall} ToolCall */
/** @typedef {import("./frames.js").ToolState} ToolState */
/** @typedef {import("./call.js").Call} Call */
/** @typedef {import("./reply.js").Reply} Reply */
/**
 * Keeps followed conversations complete: it applies the journalled events of turns to their replies, and counts them. It reads
 * the history at first, after missed events, and if a reply's text differs from what the server keeps; and it resumes after a
 * reconnect. It knows no sockets: it asks, and reports the answers.
 */
export declare class Follower {
    #private;
    /**
     * @param {object} parts
     * @param {import("./live-replies.js").LiveReplies} parts.live
     * @param {(frame: Record<string, unknown>) => Promise<any>} parts.ask   rejects with ChatError
     * @param {(type: string, detail: unknown) => void} parts.emit
     */
    constructor({ live, ask, emit }: {
        live: import("./live-replies.js").LiveReplies;
        ask: (frame: Record<string, unknown>) => Promise<any>;
        emit: (type: string, detail: unknown) => void;
    });
    /** The conversations that are followed. */
    get followed(): string[];
    /** @param {string} conversationId */
    follow(conversationId: string): void;
    /** @param {string} conversationId */
    leave(conversationId: string): void;
    /** Takes that a conversation is gone. @param {string} conversationId */
    forget(conversationId: string): void;
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
    /** @param {Accepted} frame */
    accepted(frame: Accepted): void;
    /** @param {Delta} frame */
    delta(frame: Delta): void;
    /** @param {import("./frames.js").Reasoning} frame */
    reasoning(frame: import("./frames.js").Reasoning): void;
    /** @param {import("./frames.js").SourceText} frame */
    source(frame: import("./frames.js").SourceText): void;
    /** @param {ToolCall} frame */
    toolCall(frame: ToolCall): void;
    /** @param {ToolState} frame */
    toolState(frame: ToolState): undefined;
    /** @param {Done} frame */
    done(frame: Done): void;
    /** @param {{conversation_id: string, turn_id: string, first_seq?: number, seq: number}} frame */
    removed(frame: {
        conversation_id: string;
        turn_id: string;
        first_seq?: number;
        seq: number;
    }): void;
    /** @param {import("./frames.js").Status} frame */
    status(frame: import("./frames.js").Status): void;
}
