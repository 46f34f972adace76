import { randomId } from "../../client/identity.js";
import { Transcript } from "./transcript.js";

/** The transcripts of the conversations of this visit. */
export class Transcripts {
  /** @type {Map<string, Transcript>} */
  #byConversation = new Map();
  /** @type {Transcript | null} The last one that was begun. */ #fresh = null;

  /** @param {string} conversationId */
  of(conversationId) {
    let transcript = this.#byConversation.get(conversationId);
    if (transcript === undefined) {
      transcript = new Transcript(conversationId);
      this.#byConversation.set(conversationId, transcript);
    }
    return transcript;
  }

  /** The transcript of a conversation that nobody has sent to yet: the one from before, where it is still so, with its draft. */
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
