import { Reply } from "./reply.js";
export type ChatError = import("./errors.js").ChatError;
export type Unfinished = {
    reply: Reply;
    frame: {
        client_msg_id: string;
    } & Record<string, unknown>;
};
/** Whether a message of the history is a reply that runs, or whose calls are open. @param {import("./frames.js").Message} message */
export declare function isUnfinished({ role, status, calls }: import("./frames.js").Message): boolean;
/**
 * The replies whose end was not seen yet: by turn, and those of this client by the id of their message too.
 * Whatever ends here is told to `tell`.
 */
export declare class LiveReplies {
    #private;
    /** @param {(reply: Reply) => void} tell */
    constructor(tell: (reply: Reply) => void);
    /** Own messages with the frames to send them again with, oldest first. */
    get unfinished(): Unfinished[];
    /** Whether something is awaited of the server by itself: calls may wait for people as long as these like. */
    get awaited(): boolean;
    /** Adds a message of this client. @param {Unfinished} message */
    add({ reply, frame }: Unfinished): void;
    /** @param {string} clientMsgId */
    ownOf(clientMsgId: string): Reply | undefined;
    /** @param {string} turnId */
    ofTurn(turnId: string): Reply | undefined;
    /** The replies of a conversation whose end is still to come, oldest first. @param {string} conversationId */
    openIn(conversationId: string): Reply[];
    /** The reply that a message was accepted for; a new one where another device sent it. @param {import("./frames.js").Accepted} frame */
    accept(frame: import("./frames.js").Accepted): Reply;
    /** Takes what was said: it is the message of a turn, which may have begun already. @param {import("./frames.js").Heard} frame */
    heard({ conversation_id: conversationId, item, text }: import("./frames.js").Heard): void;
    /**
     * The reply of a turn that runs, whether or not it was known here: it may have begun before this client came.
     * @param {string} conversationId
     * @param {string} turnId
     */
    running(conversationId: string, turnId: string): Reply;
    /** Takes the end of a reply; one that called stays, until the reply that follows begins. @param {Reply} reply @param {import("./frames.js").Done} frame */
    finish(reply: Reply, frame: import("./frames.js").Done): void;
    /** @param {Reply} reply @param {ChatError} error */
    refuse(reply: Reply, error: ChatError): void;
    /** @param {Reply} reply */
    withdraw(reply: Reply): void;
    /** The stop of a conversation's replies was refused: they go on. @param {string} conversationId */
    release(conversationId: string): void;
    /** What others sent can't be sent again from here; history tells what became of it. @param {string} conversationId */
    dropStrangers(conversationId: string): void;
    /** Lets go of replies whose end was missed: history has them whole. @param {import("./frames.js").Message[]} messages */
    dropEnded(messages: import("./frames.js").Message[]): void;
    /** Marks that a connection was lost: what comes next comes otherwise than as it is made. */
    pause(): void;
}
