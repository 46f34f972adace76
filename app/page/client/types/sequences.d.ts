import { Sequence } from "./sequence.js";
/** The journals of all conversations, as far as they are known. It does not know what happens after a hole. */
export declare class Sequences {
    #private;
    /** @param {string} conversationId */
    of(conversationId: string): Sequence;
    /**
     * Counts an event. False: events before it were missed.
     * @param {{conversation_id: string, first_seq?: number, seq: number}} frame
     */
    take({ conversation_id: conversationId, first_seq: firstSeq, seq }: {
        conversation_id: string;
        first_seq?: number;
        seq: number;
    }): boolean;
    /** @param {string} conversationId */
    forget(conversationId: string): void;
}
