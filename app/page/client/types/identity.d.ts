/** Ids that this browser makes or keeps. */
/**
 * A random UUID (version 4, RFC 9562). It also works over plain HTTP, where `crypto.randomUUID` is missing.
 * @param {Crypto} [source]
 */
export declare function randomId(source?: Crypto): string;
/**
 * Keeps the client id that a server gave, in a Web Storage; without one, for this visit only. Where nobody needs a key,
 * an id is as good as a password: no other server gets it.
 * @param {Storage | null} storage
 * @param {string} url  of the server's WebSocket
 */
export declare function clientIdKeeper(storage: Storage | null, url: string): {
    get: () => string | null;
    /** @param {string} clientId */
    keep(clientId: string): void;
};
