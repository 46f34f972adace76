import { ChatError } from "./errors.js";

/** @typedef {import("./frames.js").Attachment} Attachment */

/**
 * Images of conversations, over HTTP. They are uploaded before the message that shows them (`attachments` of `send` and
 * `edit`), and can be read once a conversation shows them. Only their owner can read them.
 */
export class Images {
  #url;
  #credentials;
  #clientId;
  #request;

  /**
   * @param {object} options
   * @param {string} options.url                http: or https:, ending in /v1/attachments
   * @param {() => string | null} options.clientId  as `ready` has it
   * @param {import("./credentials.js").Credentials} [options.credentials]  where the server asks for a key
   * @param {(url: string, options: RequestInit) => Promise<Response>} [options.request]
   */
  constructor({ url, clientId, credentials, request = (target, options) => fetch(target, options) }) {
    this.#url = url;
    this.#clientId = clientId;
    this.#credentials = credentials;
    this.#request = request;
  }

  /** Uploads an image for a later message. Raises ChatError. @param {Blob} image @returns {Promise<Attachment>} */
  upload(image) {
    return this.#ask("", { method: "POST", body: image }, (answer) => answer.json());
  }

  /**
   * The bytes of an image that a conversation shows. Raises ChatError.
   * @param {string} conversationId
   * @param {string} id
   * @returns {Promise<Blob>}
   */
  read(conversationId, id) {
    const path = `/${encodeURIComponent(conversationId)}/${encodeURIComponent(id)}`;
    // The browser's cache keeps nothing for whoever uses it next.
    return this.#ask(path, { cache: "no-store" }, (answer) => answer.blob());
  }

  /**
   * @template Answer
   * @param {string} path
   * @param {RequestInit} options
   * @param {(answer: Response) => Promise<Answer>} taken
   * @returns {Promise<Answer>}
   */
  async #ask(path, options, taken) {
    const clientId = this.#clientId();
    const query = clientId === null ? "" : `?client_id=${encodeURIComponent(clientId)}`;
    const key = this.#credentials?.key ?? null;
    const headers = key === null ? undefined : { Authorization: `Bearer ${key}` };
    try {
      const answer = await this.#request(`${this.#url}${path}${query}`, { ...options, headers });
      if (answer.ok) return await taken(answer);
      throw await refusalOf(answer);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      throw new ChatError(ChatError.NOT_CONNECTED, String(error), { retryable: true }); // the network failed
    }
  }
}

/** @param {Response} answer */
async function refusalOf(answer) {
  const retryAfter = answer.headers.get("Retry-After");
  const options = { retryAfterMs: retryAfter === null ? null : 1000 * Number(retryAfter) };
  try {
    const { error } = await answer.json();
    return new ChatError(error?.code ?? "internal", error?.message ?? `The answer was ${answer.status}.`, options);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    return new ChatError("internal", `The answer was ${answer.status}.`, options); // a proxy answered, in a form of its own
  }
}
