/** Keeps the page's own files, so that it opens without a network. With one, the newest are shown. */

const KEPT = "files";

addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  if (method === "GET" && new URL(url).origin === location.origin) event.respondWith(answer(event.request));
});

/** @param {Request} request */
async function answer(request) {
  const kept = await caches.open(KEPT);
  try {
    const fresh = await fetch(request);
    if (fresh.ok) await kept.put(request, fresh.clone());
    return fresh;
  } catch (error) {
    const old = await kept.match(request, { ignoreSearch: true });
    if (old === undefined) throw error;
    return old;
  }
}
