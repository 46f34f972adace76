import { randomId } from "../../client/identity.js";
import { Transcript } from "./transcript.js";

/** The transcripts of the conversations of this visit. */
export class Transcripts {
  /** @type {Map<string, Transcript>} */
  #byConversation = new Map();

  /** @param {string} conversationId */
  of(conversationId) {
    let transcript = this.#byConversation.get(conversationId);
    if (transcript === undefined) {
      transcript = new Transcript(conversationId);
      this.#byConversation.set(conversationId, transcript);
    }
    return transcript;
  }

  /** The transcript of a conversation that nobody has sent to yet. */
  fresh() {
    const transcript = this.of(randomId());
    transcript.empty();
    return transcript;
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.#byConversation.delete(conversationId);
  }
}
