/** Ids that this browser makes or keeps. */

const CLIENT_ID_KEY = "midstream.client_id";

/**
 * A random UUID (version 4, RFC 9562). It also works over plain HTTP, where `crypto.randomUUID` is missing.
 * @param {Crypto} [source]
 */
export function randomId(source = globalThis.crypto) {
  if (typeof source.randomUUID === "function") return source.randomUUID();
  const bytes = source.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

/**
 * Keeps the client id that a server gave, in a Web Storage; without one, for this visit only. Where nobody needs a key,
 * an id is as good as a password: no other server gets it.
 * @param {Storage | null} storage
 * @param {string} url  of the server's WebSocket
 */
export function clientIdKeeper(storage, url) {
  const { protocol, host } = new URL(url, globalThis.location?.href);
  const origin = `${protocol.replace(/^http/, "ws")}//${host}`;
  const own = globalThis.location?.origin?.replace(/^http/, "ws");
  const key = origin === own ? CLIENT_ID_KEY : `${CLIENT_ID_KEY} ${origin}`;
  let current = storage?.getItem(key) ?? null;
  return {
    get: () => current,
    /** @param {string} clientId */
    keep(clientId) {
      if (clientId === current) return;
      current = clientId;
      storage?.setItem(key, clientId);
    },
  };
}
