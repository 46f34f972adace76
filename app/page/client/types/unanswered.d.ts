export type Frame = Record<string, any>;
export type Kept = {
    messages: {
        frame: Frame;
        attachments: import("./frames.js").Attachment[];
    }[];
    stops: Frame[];
};
/** Keeps the messages and stops that the server has not answered yet, so that they outlive a reload. */
export declare class Unanswered {
    #private;
    /** @param {Storage | null} storage  one that belongs to the tab: another tab must not send them, too */
    constructor(storage: Storage | null);
    /** What was kept before the reload. @returns {Kept} */
    read(): Kept;
    /** Call on every change of a reply; it writes only if something was asked or answered. @param {Kept} kept */
    write(kept: Kept): void;
    /** Forgets them, and keeps none from now on. */
    forget(): void;
}
