/** What a model thinks aloud beside its reply. Offsets are code points of their own, times are `performance.now()` milliseconds. */
export declare class Thoughts {
    #private;
    /** All that was thought so far; after the end, what is kept. */
    text: string;
    /** Code points of `text`. */
    chars: number;
    /** Whether the last that came of the reply was thought. */
    growing: boolean;
    /**
     * For how long the model thought, in milliseconds, as seen here: from the first piece to what came behind the last.
     * Null while it thinks, and where that was not seen.
     * @returns {number | null}
     */
    get ms(): number | null;
    /**
     * Takes a piece. False, and nothing is taken, where something before it is missing.
     * @param {import("./frames.js").Reasoning} frame
     * @param {number} now
     */
    append({ off, text }: import("./frames.js").Reasoning, now: number): boolean;
    /**
     * Takes all of it so far as history tells it, where that is more than is known here.
     * @param {string} text
     * @param {{growing: boolean}} options  whether nothing else of the reply came behind it
     */
    catchUp(text: string, { growing }: {
        growing: boolean;
    }): void;
    /** Something else of the reply came, or its end. @param {number} now */
    rest(now: number): void;
    /** Cuts it to what is kept. @param {number} chars */
    cut(chars: number): void;
    /** The connection was lost: what comes next comes otherwise than as it is made. */
    pause(): void;
}
