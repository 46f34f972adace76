/** Pages of older messages that are read to come to one that was found. */
const MOST_PAGES = 50;
const PAGE = 200;

/** Leads to a message that was found, wherever in its conversation it stands. */
export class MessageJump {
  #client;
  #reporter;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../reporter.js").Reporter} parts.reporter
   */
  constructor({ client, reporter }) {
    this.#client = client;
    this.#reporter = reporter;
  }

  /**
   * Reads older messages until the one that was found is among them. One of another branch has that branch shown.
   * @param {import("./transcript.js").Transcript} transcript
   * @param {string} messageId
   * @returns {Promise<boolean>} whether it is among them now
   */
  async load(transcript, messageId) {
    const { conversationId } = transcript;
    for (let pages = 0; pages < MOST_PAGES && !transcript.has(messageId); pages += 1) {
      const before = transcript.loaded ? transcript.oldest : undefined;
      if (transcript.loaded && !transcript.hasMore) break;
      const page = await this.#reporter.answer(this.#client.history({ conversationId, before, limit: PAGE }));
      if (page === null) return false;
      if (before === undefined) transcript.refresh(page);
      else if (transcript.oldest === before) transcript.prepend(page);
    }
    if (!transcript.has(messageId) && !transcript.hasMore) {
      await this.#reporter.answer(this.#client.showBranch({ conversationId, messageId }));
    }
    return transcript.has(messageId);
  }
}
