/** A model's reasoning beside its reply. Its offsets are code points of its own; times are `performance.now()` milliseconds. */
export declare class ReasoningText {
    #private;
    /** The reasoning so far; after the end, what is kept of it. */
    text: string;
    /** Code points of `text`. */
    chars: number;
    /** Whether the newest part of the reply is reasoning. */
    growing: boolean;
    /**
     * How long the model reasoned, in milliseconds, measured here: from the first piece to what came behind the last.
     * Null while it reasons, and if that was not seen.
     * @returns {number | null}
     */
    get ms(): number | null;
    /**
     * Takes a piece. Returns false, and takes nothing, if something before it is missing.
     * @param {import("./frames.js").Reasoning} frame
     * @param {number} now
     */
    append({ off, text }: import("./frames.js").Reasoning, now: number): boolean;
    /**
     * Takes the reasoning from the history, if it is longer than here.
     * @param {string} text
     * @param {{growing: boolean}} options  whether nothing else of the reply has followed
     */
    catchUp(text: string, { growing }: {
        growing: boolean;
    }): void;
    /** Takes that something else of the reply came, or its end. @param {number} now */
    rest(now: number): void;
    /** Cuts it to what is kept. @param {number} chars */
    cut(chars: number): void;
    /** Takes that the connection was lost: the pace of what comes next is not the model's. */
    pause(): void;
}
