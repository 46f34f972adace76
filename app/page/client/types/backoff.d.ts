/** How long to wait before the next attempt to connect: doubling, capped, half of it random. */
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
    /** The delay before the next attempt, in milliseconds: between a half and the whole of `min(cap, base * 2^n)`. */
    next(): number;
    reset(): void;
}
