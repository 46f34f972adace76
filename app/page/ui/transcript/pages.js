/** @typedef {import("../../client/frames.js").History} History */

/** Messages a page: as many as the service gives. */
const PAGE = 200;

/**
 * Pages of a conversation's history, the newest first, until there is nothing older. Raises ChatError.
 * @param {import("../../client/chat-client.js").ChatClient} client
 * @param {object} options
 * @param {string} options.conversationId
 * @param {string} [options.before]  a message: the pages before it; without one, from the end of the active branch
 * @returns {AsyncGenerator<History, void, void>}
 */
async function* pagesOf(client, { conversationId, before }) {
  for (;;) {
    const page = await client.history({ conversationId, before, limit: PAGE });
    yield page;
    if (!page.has_more || page.messages.length === 0) return;
    before = page.messages[0].message_id;
  }
}

/**
 * Brings older messages into a transcript until `enough`, or until there is none. Raises ChatError.
 * @param {import("../../client/chat-client.js").ChatClient} client
 * @param {import("./transcript.js").Transcript} transcript
 * @param {() => boolean} enough  asked behind each page
 */
async function readOlder(client, transcript, enough) {
  const { conversationId, loaded } = transcript;
  let before = loaded ? transcript.oldest : undefined;
  for await (const page of pagesOf(client, { conversationId, before })) {
    if (before === undefined) transcript.refresh(page);
    // The branch may have become another one meanwhile.
    else if (transcript.oldest !== before) return;
    else transcript.prepend(page);
    if (enough()) return;
    before = transcript.oldest;
  }
}

export { pagesOf, readOlder };
