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
 * The replies whose end was not seen yet, by turn. Those of this client are also found by the id of their message.
 * `tell` is called for each that ends here.
 */
export declare class LiveReplies {
    #private;
    /** @param {(reply: Reply) => void} tell */
    constructor(tell: (reply: Reply) => void);
    /** This client's messages, oldest first, with their frames, so that they can be sent again. */
    get unfinished(): Unfinished[];
    /** The replies of conversations that are being stopped as a whole. */
    get stopping(): Reply[];
    /** Whether the server owes something. A call that waits for a person does not count. */
    get awaited(): boolean;
    /** Adds a message of this client. @param {Unfinished} message */
    add({ reply, frame }: Unfinished): void;
    /** @param {string} clientMsgId */
    ownOf(clientMsgId: string): Reply | undefined;
    /** @param {string} turnId */
    ofTurn(turnId: string): Reply | undefined;
    /** The replies of a conversation that have not ended, oldest first. @param {string} conversationId */
    openIn(conversationId: string): Reply[];
    /** The reply of an accepted message; a new one if another device sent the message. @param {import("./frames.js").Accepted} frame */
    accept(frame: import("./frames.js").Accepted): Reply;
    /** Takes spoken text. It is the message of a turn, which may have begun already. @param {import("./frames.js").Transcript} frame */
    transcribe({ conversation_id: conversationId, utterance_id: utteranceId, text }: import("./frames.js").Transcript): void;
    /**
     * The reply of a running turn. It may be new here, as it may have begun before this client came.
     * @param {string} conversationId
     * @param {string} turnId
     */
    running(conversationId: string, turnId: string): Reply;
    /** Takes the end of a reply. A reply with calls stays until the one that follows begins. @param {Reply} reply @param {import("./frames.js").Done} frame */
    finish(reply: Reply, frame: import("./frames.js").Done): void;
    /**
     * Shows no more of the reply that runs in a conversation: a message interrupts it. Returns that reply; null if none runs.
     * A reply that is already stopping keeps what it shows: `seenOff` does not count then.
     * @param {string} conversationId
     * @param {number} [seenOff]
     */
    interrupt(conversationId: string, seenOff?: number): Reply | null;
    /** Shows no more of a reply, as in `Reply.hold`. @param {Reply} reply @param {number} chars @param {boolean} [alone] */
    hold(reply: Reply, chars: number, alone?: boolean): void;
    /** @param {Reply} reply @param {ChatError} error */
    refuse(reply: Reply, error: ChatError): void;
    /** @param {Reply} reply */
    withdraw(reply: Reply): void;
    /** Takes that the stop of a conversation's replies was refused: they go on. @param {string} conversationId */
    release(conversationId: string): void;
    /** Takes that the stop of one reply was refused: it goes on. @param {Reply} reply */
    releaseOne(reply: Reply): void;
    /** Withdraws replies that can't be sent again from here: of others' messages, or with open calls. The history has them. @param {string} conversationId */
    dropStrangers(conversationId: string): void;
    /** Forgets replies whose end was missed: the history has all of them. @param {import("./frames.js").Message[]} messages */
    dropEnded(messages: import("./frames.js").Message[]): void;
}
