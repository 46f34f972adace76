/** Ids that this browser makes or keeps. */
/**
 * A random UUID (version 4, RFC 9562). It also works over plain HTTP, where `crypto.randomUUID` is missing.
 * @param {Crypto} [source]
 */
export declare function randomId(source?: Crypto): string;
/**
 * Keeps the client id that the server gave, in a Web Storage; without one, for this visit only.
 * @param {Storage | null} storage
 */
export declare function clientIdKeeper(storage: Storage | null): {
    get: () => string | null;
    /** @param {string} clientId */
    keep(clientId: string): void;
};
