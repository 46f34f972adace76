/** The wait before the next attempt to connect: it doubles up to a cap, and half of it is random. */
export declare class Backoff {
    #private;
    /** @param {{baseMs?: number, capMs?: number, random?: () => number}} [options] */
    constructor({ baseMs, capMs, random }?: {
        baseMs?: number;
        capMs?: number;
        random?: () => number;
    });
    /** Attempts since the last success. */
    get attempts(): number;
    /** The delay before the next attempt, in milliseconds: between half and all of `min(cap, base * 2^n)`. */
    next(): number;
    reset(): void;
}
