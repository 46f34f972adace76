/** Has the browser keep the page, so that it opens without a network. */

if ("serviceWorker" in navigator) navigator.serviceWorker.register("worker.js");
