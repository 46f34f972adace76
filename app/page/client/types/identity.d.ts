/** Ids that this browser makes or keeps. */
/**
 * A random UUID (version 4, RFC 9562), also where `crypto.randomUUID` is missing: pages served over plain HTTP.
 * @param {Crypto} [source]
 */
export declare function randomId(source?: Crypto): string;
/**
 * A keeper of the client id which the server gave, in a Web Storage; without one, for this visit only.
 * @param {Storage | null} storage
 */
export declare function clientIdKeeper(storage: Storage | null): {
    get: () => string | null;
    /** @param {string} clientId */
    keep(clientId: string): void;
};
