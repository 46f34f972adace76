/**
 * What is known of a conversation's journal: its epoch, the last event seen, and the last message of its active branch.
 * Events are numbered without holes. One may cover several numbers, `firstSeq` to `seq`.
 */
export declare class Sequence {
    #private;
    /** @type {string | null | undefined} The message that the next one would follow; undefined if it is unknown. */
    leaf: string | null | undefined;
    /**
     * Where a new connection can resume; null if events before that were missed, or none was seen.
     * @returns {{epoch: string, after_seq: number} | null}
     */
    get point(): {
        epoch: string;
        after_seq: number;
    } | null;
    /**
     * Takes an event. False: events before it were missed.
     * Events that were seen before (a replay after a reconnect) are no gap.
     * @param {number} firstSeq
     * @param {number} seq
     */
    take(firstSeq: number, seq: number): boolean;
    /** Learns the epoch of the events seen. @param {string} epoch */
    within(epoch: string): void;
    /**
     * Takes a position up to which the server sent everything. A new epoch begins a new count.
     * @param {string} epoch
     * @param {number} seq
     */
    align(epoch: string, seq: number): void;
}
