/** @typedef {import("../../client/frames.js").Ready} Ready */
/** @typedef {import("../../client/frames.js").OfferedTool} OfferedTool */

/** Of one message. */
const MOST = 128;

/**
 * The tools that messages of this page offer: all that the server runs, where the model that is asked can call them.
 * @param {Ready | null} ready
 * @param {string | null} model  the one that wrote last in the conversation; null for the default
 * @returns {OfferedTool[] | undefined}
 */
export function offeredTools(ready, model) {
  const tools = ready?.tools ?? [];
  const asked = ready?.models?.find(({ name }) => name === (model ?? ready.model));
  const calls = asked?.features?.some((feature) => feature === "tools" || feature === "tools.auto") ?? false;
  return calls && tools.length > 0 ? tools.slice(0, MOST).map(({ name }) => ({ name, where: "server" })) : undefined;
}
