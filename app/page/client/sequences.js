import { Sequence } from "./sequence.js";

/** The journals of all conversations, as far as they are known. It does not know what happens after a hole. */
export class Sequences {
  /** @type {Map<string, Sequence>} */
  #byConversation = new Map();

  /** @param {string} conversationId */
  of(conversationId) {
    let sequence = this.#byConversation.get(conversationId);
    if (sequence === undefined) this.#byConversation.set(conversationId, (sequence = new Sequence()));
    return sequence;
  }

  /**
   * Counts an event. False: events before it were missed.
   * @param {{conversation_id: string, first_seq?: number, seq: number}} frame
   */
  take({ conversation_id: conversationId, first_seq: firstSeq, seq }) {
    return this.of(conversationId).take(firstSeq ?? seq, seq);
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.#byConversation.delete(conversationId);
  }
}
