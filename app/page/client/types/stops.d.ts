import { Reply } from "./reply.js";
export type Stop = {
    reply: Reply;
    frame: {
        conversation_id: string;
    } & Record<string, unknown>;
};
/** @typedef {{reply: Reply, frame: {conversation_id: string} & Record<string, unknown>}} Stop */
/** The frame that stops a reply where it is shown now. @param {Reply} reply */
export declare function stopOf({ conversationId, turnId, exchangeId, visibleChars }: Reply): {
    turn_id: string | undefined;
    client_msg_id: string | undefined;
    type: string;
    conversation_id: string;
    seen_off: number;
};
/** Stops of single replies that the server has not answered yet. After a lost connection they are sent again. */
export declare class Stops {
    #private;
    /**
     * @param {object} parts
     * @param {import("./live-replies.js").LiveReplies} parts.live
     * @param {(frame: Record<string, unknown>) => Promise<any>} parts.ask   rejects with ChatError
     */
    constructor({ live, ask }: {
        live: import("./live-replies.js").LiveReplies;
        ask: (frame: Record<string, unknown>) => Promise<any>;
    });
    /** The conversations of these replies. */
    get conversations(): string[];
    /**
     * Notes a stop. It names the reply's message, so it counts before the turn has an id and for the turn that follows calls.
     * @param {Reply} reply
     * @param {number} seenOff
     */
    add(reply: Reply, seenOff: number): {
        reply: Reply;
        frame: {
            turn_id: string | undefined;
            client_msg_id: string | undefined;
            type: string;
            conversation_id: string;
            seen_off: number;
        };
    };
    /** Whether a reply's stop is not answered yet. @param {Reply} reply */
    has(reply: Reply): boolean;
    /** The frames of all. */
    get frames(): ({
        conversation_id: string;
    } & Record<string, unknown>)[];
    /** Takes a stop from before a reload; `again` sends it. @param {Stop["frame"]} frame */
    restore(frame: Stop["frame"]): void;
    /**
     * Sends a stop. Raises ChatError: if the server refuses, the reply goes on.
     * @param {Stop} stop
     * @returns {Promise<import("./frames.js").Cancelled>}
     */
    send(stop: Stop): Promise<import("./frames.js").Cancelled>;
    /**
     * Sends the stops of a conversation on a new connection. Returns false if that is lost again.
     * @param {string} conversationId
     */
    again(conversationId: string): Promise<boolean>;
    /** Forgets the stops of a conversation: it is gone, or all its replies are stopped. @param {string} conversationId */
    forget(conversationId: string): void;
}
