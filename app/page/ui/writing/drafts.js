const KEY = "midstream.drafts";
/** So many drafts are kept, and so many UTF-16 units of all of them together: the oldest go. */
const MOST = 30;
const MOST_UNITS = 200_000;

/** @typedef {[conversationId: string, text: string]} Draft */

/**
 * What was written and not sent yet, by conversation: it outlives a reload. Where the key goes with the tab, so do the drafts:
 * whoever opens the browser next is not to read them.
 */
export class Drafts {
  #lasting;
  #session;
  #forTab;

  /**
   * @param {object} options
   * @param {Storage | null} options.lasting
   * @param {Storage | null} options.session   forgets with the tab
   * @param {() => boolean} options.forTab     whether what is written now is for this tab alone
   */
  constructor({ lasting, session, forTab }) {
    this.#lasting = lasting;
    this.#session = session;
    this.#forTab = forTab;
  }

  /** The draft of a conversation; empty where there is none. @param {string} conversationId */
  of(conversationId) {
    const drafts = [...read(this.#session), ...read(this.#lasting)];
    return drafts.find(([id]) => id === conversationId)?.[1] ?? "";
  }

  /** Keeps a draft in the place of the one before; an empty one is none. @param {string} conversationId @param {string} text */
  keep(conversationId, text) {
    const [here, there] = this.#forTab() ? [this.#session, this.#lasting] : [this.#lasting, this.#session];
    put(there, conversationId, "");
    put(here, conversationId, text);
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.keep(conversationId, "");
  }

  clear() {
    this.#session?.removeItem(KEY);
    this.#lasting?.removeItem(KEY);
  }
}

/** @param {Storage | null} storage @returns {Draft[]} the newest last */
function read(storage) {
  try {
    const drafts = JSON.parse(storage?.getItem(KEY) ?? "[]");
    return Array.isArray(drafts) ? drafts : [];
  } catch (error) {
    if (error instanceof SyntaxError) return []; // Another program's, or cut off.
    throw error;
  }
}

/**
 * @param {Storage | null} storage
 * @param {string} conversationId
 * @param {string} text
 */
function put(storage, conversationId, text) {
  const drafts = read(storage);
  const others = drafts.filter(([id]) => id !== conversationId);
  if (text === "" && others.length === drafts.length) return;
  write(storage, text === "" ? others : bounded([...others, [conversationId, text]]));
}

/** The newest of them that fit. @param {Draft[]} drafts */
function bounded(drafts) {
  /** @type {Draft[]} */ const kept = [];
  let units = 0;
  for (const draft of drafts.slice(-MOST).reverse()) {
    units += draft[1].length;
    if (units > MOST_UNITS) break;
    kept.unshift(draft);
  }
  return kept;
}

/** @param {Storage | null} storage @param {Draft[]} drafts */
function write(storage, drafts) {
  try {
    storage?.setItem(KEY, JSON.stringify(drafts));
  } catch (error) {
    // A browser that has no room left: what is in the box is still there until the page is closed.
    if (!(error instanceof DOMException)) throw error;
  }
}
