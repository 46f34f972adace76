import { Call } from "./call.js";
import { ReasoningText } from "./reasoning-text.js";
/** @enum {string} */
export declare const ReplyState: Readonly<{
    /** Not accepted yet: on its way, or waiting for a connection. */
    SENDING: "sending";
    /** Accepted, no text yet. */
    WAITING: "waiting";
    /** Text arrives. */
    STREAMING: "streaming";
    /** It called tools (`done{tools}`). Once all its calls are settled, the next reply begins by itself. */
    CALLING: "calling";
    /** `done` came, with any reason. After calls: the reply that follows has begun. */
    ENDED: "ended";
    /** Refused before it was accepted; the server keeps nothing of it. */
    REFUSED: "refused";
    /** Stopped by the user before the server had it, or lost with the connection. */
    WITHDRAWN: "withdrawn";
}>;
/**
 * One exchange: the user's message and the reply to it, as far as this client knows it.
 * Offsets and lengths are Unicode code points.
 */
export declare class Reply {
    #private;
    conversationId: string;
    /** @type {string} */ state: string;
    /** @type {string | null} */ turnId: string | null;
    /** @type {string | null} The user's message that it answers; after calls, the reply that made them. */ messageId: string | null;
    /** @type {string | null} The turn whose calls it follows; null if it answers a message. */ follows: string | null;
    /** @type {string | null | undefined} The message before that one; undefined if it is unknown. */ parentId: string | null | undefined;
    /** @type {string | null} The message that this exchange replaces: it was edited, or is a reply that is regenerated. */ replaces: string | null;
    /** @type {string | null} The reply that it continues: the same message, whose text comes first. */ continues: string | null;
    /** Whether it began a branch: it does not follow the message that was last. */
    branches: boolean;
    /** @type {string | null} */ clientMsgId: string | null;
    /** @type {string | null} The id of the message that its exchange began with, after calls too; null if it is unknown. */ exchangeId: string | null;
    /** @type {string | null} The user's message; null if another device sent it, and its text is unknown. */
    content: string | null;
    /** @type {import("./frames.js").Attachment[]} The images that the message shows. */ attachments: import("./frames.js").Attachment[];
    /** @type {import("./frames.js").Languages | null} The languages of a live translation; its message is the source. */ interprets: import("./frames.js").Languages | null;
    /** @type {[start: number, end: number, sourceChars: number][]} How much of the source had been read for each piece of text that came live. */
    alignment: [start: number, end: number, sourceChars: number][];
    /** Whether the user may still go on speaking. Then it is taken back, so it is not shown yet. */
    unsure: boolean;
    /** @type {boolean} Whether this client sent it, and so may send it again. */
    own: boolean;
    /** The text so far; after the end, the text that is kept. */
    text: string;
    /** Code points of `text`. */
    chars: number;
    /** Whether text, reasoning or a call was missed. What is here ends before the hole; the history has all of it. */
    holed: boolean;
    /** The model's reasoning, which is not part of the text. */
    reasoning: ReasoningText;
    /** @type {Call[]} The calls that it made, in order. */
    calls: Call[];
    /** @type {import("./frames.js").Done | null} */ done: import("./frames.js").Done | null;
    /** @type {import("./errors.js").ChatError | null} Why it was refused. */ error: import("./errors.js").ChatError | null;
    /** @type {import("./frames.js").Status | null} The newest status while it waits. */ status: import("./frames.js").Status | null;
    /** Whether its message was sent. */
    sent: boolean;
    /** @type {Reply | null} The reply that its message interrupts. */ interrupts: Reply | null;
    /** Whether its stop means no other reply of its conversation. */
    alone: boolean;
    /** @param {string} conversationId */
    constructor(conversationId: string);
    /** Whether more is to come: text, its end, or the reply that follows its calls. */
    get open(): boolean;
    /** The text to show: all of it, or up to where the user stopped it. */
    get visible(): string;
    /** Code points of `visible`. */
    get visibleChars(): number;
    /** The source of a live translation, as far as it has come; empty for other replies. */
    get source(): string;
    /** Whether the user has asked to stop it. */
    get stopping(): boolean;
    /** @param {import("./frames.js").Accepted} frame */
    accept(frame: import("./frames.js").Accepted): void;
    /**
     * Takes a piece of text. Of a piece that overlaps the text (a replay) only the new part is added.
     * Returns false, and takes nothing, if text before the piece is missing.
     * @param {import("./frames.js").Delta} frame
     */
    append(frame: import("./frames.js").Delta): boolean;
    /**
     * Takes what was spoken as its message, if it has come. Before that nobody knows whether the speaker has ended.
     * @param {Map<string, string>} said  by utterances
     */
    hear(said: Map<string, string>): boolean;
    /**
     * Takes more of its source, which is its `content`. Returns false if a part before it is missing.
     * @param {import("./frames.js").SourceText} frame
     */
    grow(frame: import("./frames.js").SourceText): boolean;
    /** Takes the source from the history, if it is longer than here. @param {import("./frames.js").Message} message */
    catchUpSource({ content, interprets }: import("./frames.js").Message): void;
    /** Takes a piece of the model's reasoning. @param {import("./frames.js").Reasoning} frame */
    think(frame: import("./frames.js").Reasoning): void;
    /**
     * Takes a call. It may come again after a reconnect, and is taken once.
     * @param {import("./frames.js").ToolCall} frame
     */
    call(frame: import("./frames.js").ToolCall): Call;
    /** One of its calls. @param {string} callId */
    callOf(callId: string): Call | undefined;
    /**
     * Takes the reply from the history, if it is longer than here.
     * @param {import("./frames.js").Message} message
     */
    catchUp(message: import("./frames.js").Message): void;
    /**
     * Shows nothing past `chars` from now on: only what the user has seen is kept.
     * @param {number} chars
     * @param {boolean} [alone]  whether no other reply is stopped with it
     */
    hold(chars: number, alone?: boolean): void;
    /** Shows all of it again: it was not stopped. */
    release(): void;
    /** Ends the reply, and cuts it to what is kept. @param {import("./frames.js").Done} frame */
    finish(frame: import("./frames.js").Done): void;
    /** Ends it: its calls are settled, and the reply that follows has begun. */
    conclude(): void;
    /**
     * Whether the text is what the server keeps, byte for byte. Null if the browser can't tell: it has hashes in secure
     * contexts only.
     * @returns {Promise<boolean | null>}
     */
    verified(): Promise<boolean | null>;
    /** @param {import("./errors.js").ChatError} error */
    refuse(error: import("./errors.js").ChatError): void;
    withdraw(): void;
}
