/** The address of a conversation within the page: `#/` and its id. */

const ADDRESS = /^#\/([A-Za-z0-9._:-]{1,128})$/;

/** @param {string} conversationId */
export function addressOf(conversationId) {
  return `#/${conversationId}`;
}

/** The conversation that an address names; null where it names none. @param {string} hash */
export function conversationAt(hash) {
  return ADDRESS.exec(hash)?.[1] ?? null;
}
