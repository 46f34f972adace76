/** @typedef {import("../../client/frames.js").History} History */

/** Messages of a page: the most that the service gives. */
export const PAGE = 200;

/**
 * Pages of a conversation's history, newest first, until there are no older ones. Raises ChatError.
 * @param {import("../../client/chat-client.js").ChatClient} client
 * @param {object} options
 * @param {string} options.conversationId
 * @param {string} [options.before]  a message, for the pages before it; without it, from the end of the active branch
 * @returns {AsyncGenerator<History, void, void>}
 */
export async function* pagesOf(client, { conversationId, before }) {
  for (;;) {
    const page = await client.history({ conversationId, before, limit: PAGE });
    yield page;
    if (!page.has_more || page.messages.length === 0) return;
    before = page.messages[0].message_id;
  }
}

/**
 * Reads older messages into a transcript until `enough`, or until there are no more. Raises ChatError.
 * @param {import("../../client/chat-client.js").ChatClient} client
 * @param {import("./transcript.js").Transcript} transcript
 * @param {() => boolean} enough  asked before each further page
 */
export async function readOlder(client, transcript, enough) {
  let { oldest: before } = transcript;
  if (!transcript.hasMore) return;
  for await (const page of pagesOf(client, { conversationId: transcript.conversationId, before })) {
    if (transcript.oldest !== before) return; // Another branch may be shown by now.
    transcript.prepend(page);
    if (enough()) return;
    before = transcript.oldest;
  }
}
