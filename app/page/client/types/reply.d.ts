import { Call } from "./call.js";
import { Thoughts } from "./thoughts.js";
/** @enum {string} */
export declare const ReplyState: Readonly<{
    /** Not accepted yet: on its way, or waiting for a connection. */
    SENDING: "sending";
    /** Accepted, no text yet. */
    WAITING: "waiting";
    /** Text arrives. */
    STREAMING: "streaming";
    /** It called tools (`done{tools}`): once all its calls are settled, the reply that follows begins by itself. */
    CALLING: "calling";
    /** `done` came, whatever its reason; where it called, the reply that follows has begun. */
    ENDED: "ended";
    /** Refused before it was accepted; the server keeps no trace of it. */
    REFUSED: "refused";
    /** Given up by the user before the server had it, or lost with the connection. */
    WITHDRAWN: "withdrawn";
}>;
/**
 * Tokens per second; null where there is too little to tell a pace from.
 * @param {{tokens: number, ms: number}} measured
 * @returns {number | null}
 */
export declare function paceOf({ tokens, ms }: {
    tokens: number;
    ms: number;
}): number | null;
/**
 * One exchange: the user's message and the reply to it, as far as it is known here.
 * Offsets and lengths are Unicode code points, times are `performance.now()` milliseconds.
 */
export declare class Reply {
    #private;
    conversationId: string;
    /** @type {string} */ state: string;
    /** @type {string | null} */ turnId: string | null;
    /** @type {string | null} The user's message that it answers; where it follows calls, the reply that made them. */ messageId: string | null;
    /** @type {string | null} The turn whose calls it follows; null where it answers a message. */ follows: string | null;
    /** @type {string | null | undefined} The message before that one; undefined where it is not known. */ parentId: string | null | undefined;
    /** @type {string | null} The message that this exchange takes the place of: edited, or a reply made anew. */ replaces: string | null;
    /** @type {string | null} The reply that it goes on with: the same message, whose text stands before what comes. */ continues: string | null;
    /** Whether it began a branch: it does not follow what was the last message. */
    branches: boolean;
    /** @type {string | null} */ clientMsgId: string | null;
    /** @type {string | null} The user's message; null where another device sent it and it was not told. */
    content: string | null;
    /** @type {import("./frames.js").Attachment[]} The images that the message shows. */ attachments: import("./frames.js").Attachment[];
    /** @type {import("./frames.js").Languages | null} From what to what it translates live; its message is the source. */ interprets: import("./frames.js").Languages | null;
    /** @type {[start: number, end: number, sourceChars: number][]} How much of the source had been read for each piece of text that was seen to come. */
    alignment: [start: number, end: number, sourceChars: number][];
    /** Whether the user may still go on speaking: then it is taken back, and there is nothing to show of it yet. */
    unsure: boolean;
    /** @type {boolean} Whether this client sent it, and so may send it again. */
    own: boolean;
    /** The text so far; after the end, the text as kept. */
    text: string;
    /** Code points of `text`. */
    chars: number;
    /** Whether text, thoughts or a call were missed: what is here ends before the hole, and history has the whole. */
    holed: boolean;
    /** What the model thought aloud beside the text. */
    thoughts: Thoughts;
    /** @type {Call[]} The calls that it made, in order. */
    calls: Call[];
    /** @type {import("./frames.js").Done | null} */ done: import("./frames.js").Done | null;
    /** @type {import("./errors.js").ChatError | null} Why it was refused. */ error: import("./errors.js").ChatError | null;
    /** @type {import("./frames.js").Status | null} The last word about the wait for it. */ status: import("./frames.js").Status | null;
    /** @type {number | null} */ sentAt: number | null;
    /** @type {number | null} */ firstTextAt: number | null;
    /** @type {number | null} */ lastTextAt: number | null;
    /** Tokens behind the text, and those of them that came with the first piece. */
    tokens: number;
    firstTokens: number;
    /** @param {string} conversationId */
    constructor(conversationId: string);
    /** Whether something is still to come: more of it, its end, or the reply that follows its calls. */
    get open(): boolean;
    /** The text to show: all of it, or up to where the user has stopped it. */
    get visible(): string;
    /** Code points of what is shown. */
    get visibleChars(): number;
    /** What it translates live, as far as that has come; empty where it does not. */
    get source(): string;
    /** Whether the user has asked for its end. */
    get stopping(): boolean;
    /**
     * Milliseconds from the request to the first text, as seen here; null without either.
     * @returns {number | null}
     */
    get firstTextMs(): number | null;
    /**
     * Tokens per second after the first text, as seen here; null until there are enough to tell.
     * @returns {number | null}
     */
    get tokensPerSecond(): number | null;
    /** @param {import("./frames.js").Accepted} frame */
    accept(frame: import("./frames.js").Accepted): void;
    /**
     * Takes a piece of text. A piece that overlaps the text (a replay) adds what is new of it.
     * Returns false, and takes nothing, where text before the piece is missing.
     * @param {import("./frames.js").Delta} frame
     * @param {number} now
     */
    append(frame: import("./frames.js").Delta, now: number): boolean;
    /**
     * Takes what was spoken as its message, where it has come; until then nobody knows whether it was all.
     * @param {Map<string, string>} said  by items
     */
    hear(said: Map<string, string>): boolean;
    /**
     * Takes more of the source that it translates, which is its `content`. Returns false where a part before it is missing.
     * @param {import("./frames.js").SourceText} frame
     */
    grow(frame: import("./frames.js").SourceText): boolean;
    /** Takes the source so far as history tells it, where that is more than is known here. @param {import("./frames.js").Message} message */
    catchUpSource({ content, interprets }: import("./frames.js").Message): void;
    /** Takes a piece of what the model thinks aloud. @param {import("./frames.js").Reasoning} frame @param {number} now */
    think(frame: import("./frames.js").Reasoning, now: number): void;
    /**
     * Takes a call, once: it may come again after a reconnect.
     * @param {import("./frames.js").ToolCall} frame
     * @param {number} now
     */
    call(frame: import("./frames.js").ToolCall, now: number): Call;
    /** One of its calls. @param {string} callId */
    callOf(callId: string): Call | undefined;
    /**
     * Takes the reply so far as history tells it, where that is more than is known here.
     * @param {import("./frames.js").Message} message
     */
    catchUp(message: import("./frames.js").Message): void;
    /** Shows nothing past `chars` from now on: what the user has seen is what is to be kept. @param {number} chars */
    hold(chars: number): void;
    /** Shows all that comes again: it was not stopped. */
    release(): void;
    /** Ends the reply and cuts it to what is kept. @param {import("./frames.js").Done} frame */
    finish(frame: import("./frames.js").Done): void;
    /** Its calls are settled, and the reply that follows has begun. */
    conclude(): void;
    /**
     * Whether the text is, byte for byte, what the server keeps. Null where the browser can't tell: it lends its hashes
     * to secure contexts only.
     * @returns {Promise<boolean | null>}
     */
    verified(): Promise<boolean | null>;
    /** @param {import("./errors.js").ChatError} error */
    refuse(error: import("./errors.js").ChatError): void;
    withdraw(): void;
    /** The connection was lost: what comes next comes otherwise than as it is made. */
    pause(): void;
}
