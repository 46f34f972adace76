export type Reply = import("./reply.js").Reply;
export type Call = import("./call.js").Call;
export type Message = import("./frames.js").Message;
export type UIMessageChunk = {
    type: string;
} & Record<string, unknown>;
/** Whether a call waits for its client. @param {Call} call */
export declare function waitsForClient(call: Call): boolean;
/** The id of an approval. It names the arguments that are shown, so no others can be meant. @param {Call} call */
export declare function approvalId({ callId, argsSha256 }: Call): string;
/** The chunk for the end of a call; null if it goes on. @param {Call} call @returns {UIMessageChunk | null} */
export declare function outcomeOf(call: Call): UIMessageChunk | null;
/**
 * Tells replies as one message of the AI SDK: a reply is a step, and the one that follows calls is the next step. What is
 * new in a reply becomes chunks, however it came: live, merged, or after a lost connection.
 */
export declare class UIMessageStream {
    #private;
    /** @type {ReadableStream<UIMessageChunk>} */ readable: ReadableStream<UIMessageChunk>;
    /** @type {Reply | null} The reply that is streamed now. */ reply: Reply | null;
    /** Whether it has ended. */ over: boolean;
    /** @param {{messageId?: string}} [options]  `messageId`: of a message that goes on */
    constructor({ messageId }?: {
        messageId?: string;
    });
    /** Code points of the reply's text that were streamed. */
    get streamedChars(): number;
    /** @param {() => void} then  called once it is over */
    whenOver(then: () => void): void;
    /** Tells a reply of the history that has ended: a step before those to come. @param {Message} message @param {Call[]} calls */
    past(message: Message, calls: Call[]): void;
    /**
     * Continues with a reply whose calls its client answers. The message has all else of it.
     * @param {Reply} reply
     * @param {string[]} settled  the calls that the client settles; the server may tell that later
     */
    goOn(reply: Reply, settled: string[]): void;
    /** Tells what is new of a reply: the current one, or the one that follows its calls. @param {Reply} reply */
    take(reply: Reply): void;
    /** Ends if all that is open waits for its client. */
    pause(): void;
    /** Ends as the last reply in the history did. @param {Message} message @param {Call[]} calls */
    ended({ status }: Message, calls: Call[]): void;
    /** Ends with an error, which the reader gets. @param {Error} error */
    fail(error: Error): void;
    /** Ends at once: the reader wants no more. */
    close(): void;
}
