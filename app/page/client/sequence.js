/**
 * What is known of one conversation's journal: its epoch and the last event seen.
 * Events are numbered without holes; a merged delta spans `firstSeq` to `seq`.
 */
export class Sequence {
  /** @type {string | null} */
  #epoch = null;
  /** @type {number | null} */
  #seq = null;

  /** The number of the last event seen; null before the first. */
  get seq() {
    return this.#seq;
  }

  /**
   * Takes an event. False means that events before it were missed.
   * Events seen before (a replay after a reconnect) are no gap.
   * @param {number} firstSeq
   * @param {number} seq
   */
  take(firstSeq, seq) {
    const whole = this.#seq === null || firstSeq <= this.#seq + 1;
    this.#seq = Math.max(this.#seq ?? 0, seq);
    return whole;
  }

  /**
   * Takes a position that the server told (`history`, `accepted`). A new epoch starts the count anew.
   * @param {string} epoch
   * @param {number} seq
   */
  align(epoch, seq) {
    this.#seq = epoch === this.#epoch ? Math.max(this.#seq ?? 0, seq) : seq;
    this.#epoch = epoch;
  }
}
