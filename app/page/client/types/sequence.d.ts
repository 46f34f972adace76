/**
 * What is known of one conversation's journal: its epoch, the last event seen, and the last message of its active branch.
 * Events are numbered without holes; one may stand for several, `firstSeq` to `seq`.
 */
export declare class Sequence {
    #private;
    /** @type {string | null | undefined} The message that the next one would follow; undefined where that is not known. */
    leaf: string | null | undefined;
    /** The number of the last event seen; null before the first. */
    get seq(): number | null;
    /**
     * Where a new connection can go on; null where events before that were missed, or none was seen.
     * @returns {{epoch: string, after_seq: number} | null}
     */
    get point(): {
        epoch: string;
        after_seq: number;
    } | null;
    /**
     * Takes an event. False means that events before it were missed.
     * Events seen before (a replay after a reconnect) are no gap.
     * @param {number} firstSeq
     * @param {number} seq
     */
    take(firstSeq: number, seq: number): boolean;
    /** Learns the epoch of the events seen. @param {string} epoch */
    within(epoch: string): void;
    /**
     * Takes a position that the server told with all that comes before it. A new epoch starts the count anew.
     * @param {string} epoch
     * @param {number} seq
     */
    align(epoch: string, seq: number): void;
}
