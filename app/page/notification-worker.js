/**
 * Shows notifications where a page itself may not (Chrome for Android), and brings the page back when one is chosen. It
 * answers no request: what is shown comes from the service, so no old version can be served.
 */

const worker = /** @type {any} */ (self); // a ServiceWorkerGlobalScope, which the types of documents do not have

worker.addEventListener("notificationclick", (/** @type {any} */ event) => {
  event.notification.close();
  event.waitUntil(show(event.notification.data.address));
});

/** Has an open page show a conversation, else opens one. @param {string} address */
async function show(address) {
  const pages = await worker.clients.matchAll({ type: "window", includeUncontrolled: true });
  const page = pages.find((/** @type {{url: string}} */ { url }) => new URL(url).pathname === "/");
  if (page === undefined) return worker.clients.openWindow(`/${address}`);
  page.postMessage({ address });
  return page.focus();
}
