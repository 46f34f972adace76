/** A conversation as a file: its active branch, as the server keeps it. */

import { pagesOf } from "../transcript/pages.js";
import { t } from "../words/translate.js";

/** @typedef {import("../../client/frames.js").Message} Message */
/** @typedef {{title: string, messages: Message[]}} Conversation */

/** @type {Record<string, {extension: string, type: string, write: (conversation: Conversation) => string}>} */
const FORMATS = {
  markdown: { extension: "md", type: "text/markdown", write: markdownOf },
  json: { extension: "json", type: "application/json", write: jsonOf },
};

/**
 * Every message of a conversation's active branch, oldest first. Raises ChatError.
 * @param {import("../../client/chat-client.js").ChatClient} client
 * @param {string} conversationId
 * @returns {Promise<Message[]>}
 */
export async function readAll(client, conversationId) {
  /** @type {Message[][]} */ const pages = [];
  for await (const { messages } of pagesOf(client, { conversationId })) pages.unshift(messages);
  return pages.flat();
}

/**
 * Saves a conversation as a file.
 * @param {"markdown" | "json"} format
 * @param {Conversation} conversation
 */
export function save(format, conversation) {
  const { extension, type, write } = FORMATS[format];
  const url = URL.createObjectURL(new Blob([write(conversation)], { type: `${type};charset=utf-8` }));
  const link = Object.assign(document.createElement("a"), { href: url, download: `${fileName(conversation.title)}.${extension}` });
  link.click();
  // The browser reads it only after this task.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** @param {Conversation} conversation */
function markdownOf({ title, messages }) {
  const parts = messages.map((message) => `## ${message.role === "user" ? t("You") : t("Reply")}\n\n${bodyOf(message)}`);
  return `${[`# ${title}`, ...parts].join("\n\n")}\n`;
}

/** @param {Message} message */
function bodyOf({ content, reasoning, calls = [], attachments = [], status }) {
  const thought = reasoning ? [`<details><summary>Thought</summary>\n\n${reasoning}\n\n</details>`] : [];
  const called = calls.map(({ name, args, content: result, error }) => `> Called \`${name}\` with \`${args}\`: ${result ?? error ?? "no result"}`);
  const cut = status === "complete" || status === "running" ? [] : [`*(${status})*`];
  const shown = attachments.map(({ media_type: type, width, height }) => `*(${type}, ${width} × ${height})*`);
  return [...thought, ...shown, content, ...called, ...cut].filter(Boolean).join("\n\n");
}

/** @param {Conversation} conversation */
function jsonOf({ title, messages }) {
  const exported = messages.map(({ role, content, status, created_at: at, model, reasoning, calls, attachments }) => {
    return { role, content, status, created_at: new Date(at).toISOString(), model, reasoning, calls, attachments };
  });
  return `${JSON.stringify({ title, messages: exported }, null, 2)}\n`;
}

/** A title as a valid file name. @param {string} title */
function fileName(title) {
  const name = title.replaceAll(/[\p{Cc}\p{Cf}<>:"/\\|?*]/gu, " ").replaceAll(/\s+/g, " ").trim();
  return [...name].slice(0, 80).join("").replace(/[. ]+$/, "") || "conversation";
}
