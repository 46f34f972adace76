/**
 * The user's key (or JWT) for the service. The browser keeps it until the tab is closed, or for good.
 * The socket gets a single-use ticket for it, so the key itself is only ever sent in a header.
 */
export declare class Credentials {
    #private;
    /**
     * @param {object} options
     * @param {Storage | null} options.session  forgets with the tab
     * @param {Storage | null} options.lasting  forgets when told to
     * @param {string} options.ticketUrl
     * @param {(url: string, options: RequestInit) => Promise<Response>} [options.request]
     */
    constructor({ session, lasting, ticketUrl, request }: {
        session: Storage | null;
        lasting: Storage | null;
        ticketUrl: string;
        request?: (url: string, options: RequestInit) => Promise<Response>;
    });
    /** The key; null if there is none. */
    get key(): string | null;
    /** Whether the key outlives the tab. */
    get keptForGood(): boolean;
    /**
     * @param {string} key
     * @param {{forGood: boolean}} options
     */
    keep(key: string, { forGood }: {
        forGood: boolean;
    }): void;
    forget(): void;
    /**
     * Calls `act` when another tab of this browser has forgotten the key that is kept for good here too.
     * @param {() => void} act
     */
    onForgotten(act: () => void): void;
    /**
     * The token of a connection: a ticket, or the key if there are no tickets; undefined without a key.
     * @returns {Promise<string | undefined>}
     */
    token(): Promise<string | undefined>;
}
