/** The most values that are kept, and the most UTF-16 units of all together. The oldest go. */
const MOST = 100;
const MOST_UNITS = 200_000;

/** @typedef {[conversationId: string, value: unknown]} Entry */
/**
 * Where values are kept.
 * @typedef {object} Places
 * @property {Storage | null} lasting
 * @property {Storage | null} session   forgets with the tab
 * @property {() => boolean} forTab     whether values are now kept for this tab only
 */

/**
 * What the browser keeps for each conversation, as unsent messages and settings. It outlives a reload. If the key goes with the
 * tab, so does this: the browser's next user must not read it.
 * @template Value
 */
export class Kept {
  #name;
  #places;
  #bounds;
  /** What was read last from each storage, since it is read far more often than it changes. @type {Map<Storage | null, {text: string, entries: Entry[]}>} */
  #lastRead = new Map();

  /**
   * @param {string} name  its name in the storage
   * @param {Places} places
   * @param {{most?: number, units?: number}} [bounds]
   */
  constructor(name, places, { most = MOST, units = MOST_UNITS } = {}) {
    this.#name = name;
    this.#places = places;
    this.#bounds = { most, units };
  }

  /** The value of a conversation; null if there is none. @param {string} conversationId @returns {Value | null} */
  of(conversationId) {
    const { session, lasting } = this.#places;
    const entry = [...this.#read(session), ...this.#read(lasting)].find(([id]) => id === conversationId);
    return /** @type {Value | undefined} */ (entry?.[1]) ?? null;
  }

  /** Replaces a conversation's value. Null removes it. @param {string} conversationId @param {Value | null} value */
  keep(conversationId, value) {
    const { session, lasting, forTab } = this.#places;
    const [here, there] = forTab() ? [session, lasting] : [lasting, session];
    this.#put(there, conversationId, null);
    this.#put(here, conversationId, value);
  }

  clear() {
    this.#places.session?.removeItem(this.#name);
    this.#places.lasting?.removeItem(this.#name);
  }

  /** @param {Storage | null} storage @returns {readonly Entry[]} the newest last */
  #read(storage) {
    const text = storage?.getItem(this.#name) ?? "";
    let last = this.#lastRead.get(storage);
    if (last?.text !== text) this.#lastRead.set(storage, (last = { text, entries: parsed(text) }));
    return last.entries;
  }

  /** @param {Storage | null} storage @param {string} conversationId @param {unknown} value */
  #put(storage, conversationId, value) {
    const before = this.#read(storage);
    const others = before.filter(([id]) => id !== conversationId);
    if (value === null && others.length === before.length) return;
    // A value above the limit for all is not kept, and removes no other.
    const none = value === null || unitsOf(value) > this.#bounds.units;
    write(storage, this.#name, none ? others : this.#bounded([...others, [conversationId, value]]));
  }

  /** The newest that fit. @param {Entry[]} entries */
  #bounded(entries) {
    let left = this.#bounds.units;
    const newest = entries.slice(-this.#bounds.most);
    const first = newest.findLastIndex(([, value]) => (left -= unitsOf(value)) < 0);
    return newest.slice(first + 1);
  }
}

/** @param {unknown} value */
function unitsOf(value) {
  return typeof value === "string" ? value.length : JSON.stringify(value).length;
}

/** @param {string} text @returns {Entry[]} */
function parsed(text) {
  try {
    const kept = text === "" ? [] : JSON.parse(text);
    return Array.isArray(kept) ? kept : [];
  } catch (error) {
    if (error instanceof SyntaxError) return []; // Another program wrote it, or it was cut off.
    throw error;
  }
}

/** @param {Storage | null} storage @param {string} name @param {Entry[]} entries */
function write(storage, name, entries) {
  try {
    storage?.setItem(name, JSON.stringify(entries));
  } catch (error) {
    // The browser has no room left. What is on the page stays there until it is closed.
    if (!(error instanceof DOMException)) throw error;
  }
}
