/** Keeps the page's own files, so that it opens without a network. With one, the newest are shown. */

const KEPT = "files";
/** What files name: a page its parts, a module those that it imports. */
const NAMED = /(?:href|src)="([^":]+)"|from "(\.[^"]+)"/g;

addEventListener("install", (event) => event.waitUntil(keepAll()));

addEventListener("fetch", (event) => {
  const { method, url, mode } = event.request;
  if (method !== "GET" || new URL(url).origin !== location.origin) return;
  event.respondWith(answer(event.request));
  if (mode === "navigate") event.waitUntil(keepAll().catch(() => {})); // without a network, the kept files stay
});

/** Keeps all that the page needs before it was opened a second time. */
async function keepAll() {
  const kept = await caches.open(KEPT);
  const addresses = [new URL("./", location).href];
  for (const address of addresses) {
    const fresh = await fetch(address);
    if (!fresh.ok) continue;
    await kept.put(address, fresh.clone());
    for (const [, part, module] of (await fresh.text()).matchAll(NAMED)) {
      const found = new URL(part ?? module, address).href;
      if (!addresses.includes(found)) addresses.push(found); // the loop comes to it
    }
  }
}

/**
 * Answers with the network, else with a kept file. Nothing else is kept: histories, images and exports belong to whoever
 * is logged in, and streams do not end.
 * @param {Request} request
 */
async function answer(request) {
  try {
    return await fetch(request);
  } catch (error) {
    const old = await (await caches.open(KEPT)).match(request, { ignoreSearch: true });
    if (old === undefined) throw error;
    return old;
  }
}
