/**
 * What is known of a conversation's journal: its epoch, the last event seen, and the last message of its active branch.
 * Events are numbered without holes. One may cover several numbers, `firstSeq` to `seq`.
 */
export class Sequence {
  /** @type {string | null} */ #epoch = null;
  /** @type {number | null} */ #seq = null;
  /** @type {string | null | undefined} The message that the next one would follow; undefined if it is unknown. */
  leaf = undefined;
  #holed = false;

  /**
   * Where a new connection can resume; null if events before that were missed, or none was seen.
   * @returns {{epoch: string, after_seq: number} | null}
   */
  get point() {
    if (this.#epoch === null || this.#seq === null || this.#holed) return null;
    return { epoch: this.#epoch, after_seq: this.#seq };
  }

  /**
   * Takes an event. False: events before it were missed.
   * Events that were seen before (a replay after a reconnect) are no gap.
   * @param {number} firstSeq
   * @param {number} seq
   */
  take(firstSeq, seq) {
    const whole = this.#seq === null || firstSeq <= this.#seq + 1;
    this.#seq = Math.max(this.#seq ?? 0, seq);
    this.#holed ||= !whole;
    return whole;
  }

  /** Learns the epoch of the events seen. @param {string} epoch */
  within(epoch) {
    this.#epoch = epoch;
  }

  /**
   * Takes a position up to which the server sent everything. A new epoch begins a new count.
   * @param {string} epoch
   * @param {number} seq
   */
  align(epoch, seq) {
    this.#seq = epoch === this.#epoch ? Math.max(this.#seq ?? 0, seq) : seq;
    this.#epoch = epoch;
    this.#holed = false;
  }
}
