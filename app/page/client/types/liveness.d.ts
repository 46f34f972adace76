export type LivenessOptions = {
    /**
     * has the other side say something
     */
    ask: () => void;
    /**
     * whether something is awaited of it now: an answer, more of a reply
     */
    awaits: () => boolean;
    /**
     * nothing came for a while; or something came again
     */
    onQuiet: (quiet: boolean) => void;
    /**
     * nothing came for so long that nothing will
     */
    onSilent: () => void;
};
/**
 * @typedef {object} LivenessOptions
 * @property {() => void} ask              has the other side say something
 * @property {() => boolean} awaits        whether something is awaited of it now: an answer, more of a reply
 * @property {(quiet: boolean) => void} onQuiet  nothing came for a while; or something came again
 * @property {() => void} onSilent         nothing came for so long that nothing will
 */
/**
 * Notices that the other side of a connection says nothing: a browser may take minutes to. While nothing is awaited it asks
 * once a beat, so that a thousand idle pages cost next to nothing; while something is, it takes seconds.
 */
export declare class Liveness {
    #private;
    /** @param {LivenessOptions} options */
    constructor(options: LivenessOptions);
    /** A connection stands. @param {number} beatMs */
    begin(beatMs: number): void;
    /** It stands no more. */
    end(): void;
    /** Something came. */
    heard(): void;
    /** Something was said, or heard, that may be waited upon. */
    said(): void;
    /** Asks for a sign of life now, where there is reason to doubt the connection. */
    doubt(): void;
}
