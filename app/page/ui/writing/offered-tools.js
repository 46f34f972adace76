/** @typedef {import("../../client/frames.js").Ready} Ready */
/** @typedef {import("../../client/frames.js").OfferedTool} OfferedTool */

/** The most tools of one message. */
const MOST = 128;

/**
 * The tools that messages of this page offer: all of the server's, if the model can call them.
 * @param {Ready | null} ready
 * @param {import("../../client/frames.js").Model | null} model  the model that is asked
 * @returns {OfferedTool[] | undefined}
 */
export function offeredTools(ready, model) {
  const tools = ready?.tools ?? [];
  const calls = model?.features?.some((feature) => feature === "tools" || feature === "tools.auto") ?? false;
  return calls && tools.length > 0 ? tools.slice(0, MOST).map(({ name }) => ({ name, where: "server" })) : undefined;
}
