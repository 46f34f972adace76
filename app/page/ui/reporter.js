import { ChatError } from "../client/chat-client.js";

/** Waits for requests, and tells the user of those that failed. The page shows a lost connection already. */
export class Reporter {
  #notices;

  /** @param {import("./elements/notices.js").Notices} notices */
  constructor(notices) {
    this.#notices = notices;
  }

  /**
   * The answer to a request; null if it failed.
   * @template Answer
   * @param {Promise<Answer>} request
   * @returns {Promise<Answer | null>}
   */
  async answer(request) {
    try {
      return await request;
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      if (error.code !== ChatError.DISCONNECTED) this.#notices.report(error);
      return null;
    }
  }
}
