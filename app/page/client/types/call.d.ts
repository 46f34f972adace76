/** @typedef {import("./frames.js").ShownCall} ShownCall */
/** @typedef {import("./frames.js").ToolCall} ToolCall */
/** @typedef {import("./frames.js").CallState} CallState */
/** @typedef {import("./frames.js").Question} Question */
export type ShownCall = import("./frames.js").ShownCall;
export type ToolCall = import("./frames.js").ToolCall;
export type CallState = import("./frames.js").CallState;
export type Question = import("./frames.js").Question;
/** A call of a tool by a reply, as far as it is known here. */
export declare class Call {
    callId: string;
    index: number;
    name: string;
    /** The text of a JSON object: what it runs with. */
    args: string;
    /** Of `args`: a decision has to name it. */
    argsSha256: string;
    where: "client" | "server";
    needs: "approval" | "none";
    /** Code points of the reply's text before it. */
    off: number;
    /** @type {number | null} Unix milliseconds. */
    expiresAt: number | null;
    /** @type {CallState} */ state: CallState;
    /** @type {string | null} What came of it. */ content: string | null;
    /** @type {string | null} What went wrong instead. */ error: string | null;
    /** @type {Question | null} What it asks while it runs. */ question: Question | null;
    /** @type {number | null} How far it is, from 0 to 1. */ progress: number | null;
    /** @type {string} What it does at the moment, in its own words. */ message: string;
    /** @param {ToolCall | ShownCall} frame  as it was told live, or as history has it */
    constructor(frame: ToolCall | ShownCall);
    /** Whether something may still come of it. */
    get open(): boolean;
    /** Whether somebody has to allow or deny it. */
    get asks(): boolean;
    /** Takes what became of it. @param {import("./frames.js").ToolState | ShownCall} frame */
    take(frame: import("./frames.js").ToolState | ShownCall): void;
    /** Takes how far it is. @param {import("./frames.js").Status} frame */
    note(frame: import("./frames.js").Status): void;
    /** Its turn ended otherwise than by its calls: nobody answers it any more. */
    cancel(): void;
}
