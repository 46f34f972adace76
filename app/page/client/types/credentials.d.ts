/**
 * The key (or JWT) that opens the service for this user, kept in the browser: until the tab is closed, or for good.
 * The socket gets a single-use ticket for it, so that the key itself goes only where every other page's keys go: in a header.
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
    /** The key; null where there is none. */
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
     * What a connection shows: a ticket; the key where no ticket is to be had; nothing where there is no key.
     * @returns {Promise<string | undefined>}
     */
    token(): Promise<string | undefined>;
}
