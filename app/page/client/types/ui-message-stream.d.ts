export type Reply = import("./reply.js").Reply;
export type Call = import("./call.js").Call;
export type Message = import("./frames.js").Message;
export type UIMessageChunk = {
    type: string;
} & Record<string, unknown>;
/** Whether nothing happens to a call until its client says something. @param {Call} call */
export declare function waitsForClient(call: Call): boolean;
/** What an approval is asked for by: it names the arguments that are shown, so that no others can be meant. @param {Call} call */
export declare function approvalId({ callId, argsSha256 }: Call): string;
/** What a result is for a front end: a JSON object or list as that, all else as text. @param {string} content */
export declare function outputOf(content: string): any;
/** How a call ended, as a chunk; null where it goes on. @param {Call} call @returns {UIMessageChunk | null} */
export declare function outcomeOf(call: Call): UIMessageChunk | null;
/**
 * Replies as one message of the AI SDK: a reply is a step, and one that follows calls is the next one. Whatever is new in
 * a reply when it is looked at becomes chunks, so it does not matter how it came: live, merged, or after a lost line.
 */
export declare class UIMessageStream {
    #private;
    /** @type {ReadableStream<UIMessageChunk>} */ readable: ReadableStream<UIMessageChunk>;
    /** @type {Reply | null} The reply that is told now. */ reply: Reply | null;
    /** @param {{messageId?: string, onCancel?: () => void}} [options]  `messageId`: of a message that goes on */
    constructor({ messageId, onCancel }?: {
        messageId?: string;
        onCancel?: () => void;
    });
    /** Whether it has come to its end. */
    get over(): boolean;
    /** Code points of the reply's text that were told. */
    get toldChars(): number;
    /** Whether its reader was told anything. */
    get begun(): boolean;
    /** @param {() => void} then  called once it is over */
    whenOver(then: () => void): void;
    /** A reply that has ended, as history has it: a step before those to come. @param {Message} message @param {Call[]} calls */
    past(message: Message, calls: Call[]): void;
    /** Goes on with a reply whose calls its client answers: all else of it is in the message. @param {Reply} reply */
    goOn(reply: Reply): void;
    /** Tells what is new of a reply: of the one that is told, or of the one that follows its calls. @param {Reply} reply */
    take(reply: Reply): void;
    /** Ends where all that is open waits for its client. */
    pause(): void;
    /** Ends with an error, which its reader throws. @param {Error} error */
    fail(error: Error): void;
    /** Ends at once: its reader wants no more. */
    close(): void;
}
