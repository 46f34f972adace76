/** @typedef {import("./frames.js").ShownCall} ShownCall */
/** @typedef {import("./frames.js").ToolCall} ToolCall */
/** @typedef {import("./frames.js").CallState} CallState */
export type ShownCall = import("./frames.js").ShownCall;
export type ToolCall = import("./frames.js").ToolCall;
export type CallState = import("./frames.js").CallState;
/** A reply's call of a tool, as far as this client knows it. */
export declare class Call {
    callId: string;
    index: number;
    name: string;
    /** Its arguments, the text of a JSON object. */
    args: string;
    /** SHA-256 of `args`, which a decision has to name. */
    argsSha256: string;
    where: "client" | "server";
    needs: "approval" | "none";
    /** Code points of the reply's text before it. */
    off: number;
    /** @type {number | null} Unix milliseconds. */
    expiresAt: number | null;
    /** @type {CallState} */ state: CallState;
    /** @type {string | null} Its result. */ content: string | null;
    /** @type {string | null} What went wrong instead of a result. */ error: string | null;
    /** @type {number | null} Its progress, from 0 to 1. */ progress: number | null;
    /** @type {string} What it is doing, in its own words. */ message: string;
    /** @param {ToolCall | ShownCall} frame  from a live event, or from the history */
    constructor(frame: ToolCall | ShownCall);
    /** Whether its state may still change. */
    get open(): boolean;
    /** Whether somebody has to allow or deny it. */
    get needsDecision(): boolean;
    /** Takes its new state. @param {import("./frames.js").ToolState | ShownCall} frame */
    take(frame: import("./frames.js").ToolState | ShownCall): void;
    /** Takes its progress. @param {import("./frames.js").Status} frame */
    note(frame: import("./frames.js").Status): void;
    /** Marks that its turn has ended, so nobody answers it any more. */
    cancel(): void;
}
