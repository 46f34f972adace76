/** The page of a shared conversation, which can only be read. */
import { part } from "./ui/elements/dom.js";
import { Follow } from "./ui/scrolling/follow.js";
import { PLAIN } from "./ui/transcript/arrangement.js";
import { TranscriptView } from "./ui/transcript/transcript-view.js";
import { titleInWords } from "./ui/words/languages.js";
import { t, translateDocument } from "./ui/words/translate.js";

/** @typedef {import("./ui/transcript/arrangement.js").Item} Item */
/** @typedef {{message_id: string, role: "user" | "assistant", content: string, status: string, created_at: number}} SharedMessage */
/** @typedef {{title: string, interprets?: import("./client/frames.js").Languages, messages: SharedMessage[], next?: string}} SharedPage */

translateDocument();

const nothing = () => {};
/** These messages can only be copied. */
const ACTIONS = {
  pictures: { show: () => [] }, // images are not shared
  ...{ sendAgain: nothing, edit: nothing, regenerate: nothing, continueReply: nothing, showBranch: async () => {} },
  ...{ decide: async () => null, answer: async () => {}, canContinue: () => false },
};

const source = new URL(`../v1/shares/${location.pathname.split("/").at(-1)}`, location.href);
const statusLine = part("told", HTMLElement);
const older = part("older", HTMLButtonElement);
const scroller = part("scroller", HTMLElement);
const follow = new Follow(scroller, nothing);
const view = new TranscriptView({ scroller, root: part("messages", HTMLElement), follow, actions: ACTIONS });
/** @type {SharedMessage[]} */
let messages = [];
/** @type {string | undefined} */
let next;
let loading = false;

/** A share tells no more of a message. @param {SharedMessage} message @returns {Item} */
function itemOf({ message_id: key, role, content: text, status }) {
  return { ...PLAIN, key, role, text, status };
}

/** The page before those that are shown; else the status of a refusal, or 0 without an answer. @returns {Promise<SharedPage | number>} */
async function answered() {
  if (next !== undefined) source.searchParams.set("before", next);
  try {
    const response = await fetch(source);
    return response.ok ? await response.json() : response.status;
  } catch (error) {
    if (error instanceof TypeError || error instanceof SyntaxError) return 0; // the network failed, or the answer is incomplete
    throw error;
  }
}

/** Words for why nothing is shown. @param {number} status */
function wordsFor(status) {
  if (status === 404) return t("This conversation does not exist, or is no longer shared.");
  return t("The conversation can't be shown now. Try again in a moment.");
}

async function showMore() {
  if (loading) return;
  loading = true;
  const page = await answered();
  loading = false;
  if (typeof page === "number") {
    statusLine.hidden = false;
    statusLine.classList.remove("waiting");
    statusLine.textContent = wordsFor(page);
    return;
  }
  messages = [...page.messages, ...messages];
  next = page.next;
  statusLine.hidden = true;
  older.hidden = next === undefined;
  const title = titleInWords(page);
  part("title", HTMLElement).textContent = title;
  document.title = `${title} · Midstream`;
  view.show(messages.map(itemOf), { hasMore: next !== undefined });
}

follow.following = false; // readers begin at the beginning
scroller.addEventListener("scroll", () => view.place(), { passive: true });
older.addEventListener("click", () => void showMore());
await showMore();
