/**
 * Shows notifications where pages may not (Chrome for Android), and brings the page back when one is clicked. It answers no
 * requests, so no old version of the page can be served.
 */

const worker = /** @type {any} */ (self); // a ServiceWorkerGlobalScope, which is missing from the types of documents

worker.addEventListener("notificationclick", (/** @type {any} */ event) => {
  event.notification.close();
  event.waitUntil(show(event.notification.data.address));
});

/** Shows a conversation in an open page, else opens one. @param {string} address */
async function show(address) {
  const pages = await worker.clients.matchAll({ type: "window", includeUncontrolled: true });
  const place = new URL("../", worker.location.href);
  const page = pages.find((/** @type {{url: string}} */ { url }) => new URL(url).pathname === place.pathname);
  if (page === undefined) return worker.clients.openWindow(new URL(address, place).href);
  page.postMessage({ address });
  return page.focus();
}
