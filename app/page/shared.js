/** A conversation that somebody shared: it can be read, and no more. */
import { part } from "./ui/elements/dom.js";
import { Follow } from "./ui/scrolling/follow.js";
import { TranscriptView } from "./ui/transcript/transcript-view.js";
import { t, translateDocument } from "./ui/words/translate.js";

/** @typedef {import("./ui/transcript/arrangement.js").Item} Item */
/** @typedef {{message_id: string, role: "user" | "assistant", content: string, status: string, created_at: number}} SharedMessage */
/** @typedef {{title: string, messages: SharedMessage[], has_more: boolean}} SharedPage */

translateDocument();

const nothing = () => {};
/** Nothing can be done with these messages but copy them. */
const ACTIONS = {
  ...{ onRetry: nothing, onEdit: nothing, onRegenerate: nothing, onContinue: nothing, onBranch: nothing },
  ...{ onDecide: async () => null, canContinue: () => false, limits: () => null },
};

const source = new URL(`/v1/shares/${location.pathname.split("/").at(-1)}`, location.href);
const told = part("told", HTMLElement);
const older = part("older", HTMLButtonElement);
const scroller = part("scroller", HTMLElement);
const follow = new Follow(scroller, nothing);
const view = new TranscriptView({ scroller, root: part("messages", HTMLElement), follow, actions: ACTIONS });
/** @type {SharedMessage[]} */
let messages = [];

/** @param {SharedMessage} message @returns {Item} */
function itemOf({ message_id: key, role, content: text, status }) {
  const alone = { messageId: null, siblings: [], siblingCount: 1, siblingIndex: 0 };
  const thought = { text: "", growing: false, ms: null };
  return { key, role, text, status, ...alone, reply: null, usage: null, thought, calls: [], cut: false };
}

/** The service's answer; null where there is none. */
async function answered() {
  try {
    return await fetch(source);
  } catch (error) {
    if (error instanceof TypeError) return null;
    throw error;
  }
}

/** Why nothing is shown, in words. @param {Response | null} response */
function wordsFor(response) {
  if (response?.status === 404) return t("There is no such shared conversation, or it is shared no more.");
  return t("The conversation can't be shown now. Try again in a moment.");
}

async function showMore() {
  if (messages.length > 0) source.searchParams.set("before", messages[0].message_id);
  const response = await answered();
  if (response === null || !response.ok) {
    told.hidden = false;
    told.textContent = wordsFor(response);
    return;
  }
  const page = /** @type {SharedPage} */ (await response.json());
  messages = [...page.messages, ...messages];
  told.hidden = true;
  older.hidden = !page.has_more;
  part("title", HTMLElement).textContent = page.title;
  document.title = `${page.title} · Midstream`;
  view.show(messages.map(itemOf), { hasMore: page.has_more });
}

follow.pause(); // who comes to read begins at the beginning
scroller.addEventListener("scroll", () => view.place(), { passive: true });
older.addEventListener("click", () => void showMore());
await showMore();
