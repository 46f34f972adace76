export type LivenessOptions = {
    /**
     * pings the other side
     */
    ask: () => void;
    /**
     * whether it owes something now: an answer, or more of a reply
     */
    awaits: () => boolean;
    /**
     * nothing came for a while, or something came again
     */
    onQuiet: (quiet: boolean) => void;
    /**
     * nothing came for so long that the connection is given up
     */
    onSilent: () => void;
};
/**
 * @typedef {object} LivenessOptions
 * @property {() => void} ask              pings the other side
 * @property {() => boolean} awaits        whether it owes something now: an answer, or more of a reply
 * @property {(quiet: boolean) => void} onQuiet  nothing came for a while, or something came again
 * @property {() => void} onSilent         nothing came for so long that the connection is given up
 */
/**
 * Notices that the other side of a connection is silent, which browsers may take minutes for. An idle connection is pinged
 * once a heartbeat, so a thousand idle pages cost next to nothing. While something is owed, silence is noticed in seconds.
 */
export declare class Liveness {
    #private;
    /** @param {LivenessOptions} options */
    constructor(options: LivenessOptions);
    /** Begins with an open connection. @param {number} beatMs */
    begin(beatMs: number): void;
    /** Ends: the connection is closed. */
    end(): void;
    /** Takes that something came. */
    heard(): void;
    /** Takes that something was sent or received, so that an answer may be owed now. */
    said(): void;
    /** Pings now, if there is reason to doubt the connection. */
    doubt(): void;
}
