/** @typedef {import("./frames.js").Accepted} Accepted */
/** @typedef {import("./frames.js").Delta} Delta */
/** @typedef {import("./frames.js").Done} Done */
/** @typedef {import("./frames.js").ToolCall} ToolCall */
/** @typedef {import("./frames.js").ToolState} ToolState */
/** @typedef {import("./call.js").Call} Call */
/** @typedef {import("./reply.js").Reply} Reply */
export type Accepted = import("./frames.js").Accepted;
export type Delta = import("./frames.js").Delta;
export type Done = import("./frames.js").Done;
export type ToolCall = import("./frames.js").ToolCall;
export type ToolState = import("./frames.js").ToolState;
export type Call = import("./call.js").Call;
export type Reply = import("./reply.js").Reply;
/**
 * Applies the journalled events of turns to their replies and to what is known of their conversation's journal.
 * The history is read again after missed events, or if a reply's text differs from what the server keeps.
 */
export declare class TurnEvents {
    #private;
    /**
     * @param {object} parts
     * @param {import("./live-replies.js").LiveReplies} parts.live
     * @param {import("./sequences.js").Sequences} parts.sequences
     * @param {import("./follower.js").Follower} parts.follower
     * @param {(type: string, detail: unknown) => void} parts.emit
     */
    constructor({ live, sequences, follower, emit }: {
        live: import("./live-replies.js").LiveReplies;
        sequences: import("./sequences.js").Sequences;
        follower: import("./follower.js").Follower;
        emit: (type: string, detail: unknown) => void;
    });
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
