import { randomId } from "../../client/identity.js";
import { Transcript } from "./transcript.js";

/** The transcripts of the conversations of this visit. */
export class Transcripts {
  /** @type {Map<string, Transcript>} */
  #byConversation = new Map();
  /** @type {Transcript | null} The newest conversation that was begun here. */ #fresh = null;

  /** @param {string} conversationId */
  of(conversationId) {
    let transcript = this.#byConversation.get(conversationId);
    if (transcript === undefined) {
      transcript = new Transcript(conversationId);
      this.#byConversation.set(conversationId, transcript);
    }
    return transcript;
  }

  /** The transcript of an empty conversation: the last one, with its draft, if it is still empty. */
  fresh() {
    if (this.#fresh === null || this.#fresh.items().length > 0) {
      this.#fresh = this.of(randomId());
      this.#fresh.empty();
    }
    return this.#fresh;
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.#byConversation.delete(conversationId);
    if (this.#fresh?.conversationId === conversationId) this.#fresh = null;
  }
}
