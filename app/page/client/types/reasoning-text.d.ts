/** A model's reasoning beside its reply. Its offsets are code points of its own. */
export declare class ReasoningText {
    /** The reasoning so far; after the end, what is kept of it. */
    text: string;
    /** Code points of `text`. */
    chars: number;
    /** Whether the newest part of the reply is reasoning. */
    growing: boolean;
    /**
     * Takes a piece. Returns false, and takes nothing, if something before it is missing.
     * @param {import("./frames.js").Reasoning} frame
     */
    append({ off, text }: import("./frames.js").Reasoning): boolean;
    /**
     * Takes the reasoning from the history, if it is longer than here.
     * @param {string} text
     * @param {{growing: boolean}} options  whether nothing else of the reply has followed
     */
    catchUp(text: string, { growing }: {
        growing: boolean;
    }): void;
    /** Cuts it to what is kept. @param {number} chars */
    cut(chars: number): void;
}
