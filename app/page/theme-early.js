// A classic script, so that it runs before the first paint: a kept choice of theme must not flash the other one.
try {
  const kept = localStorage.getItem("midstream.theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch (error) {
  // Where the browser forbids storage, the system's theme is the right one.
  if (!(error instanceof DOMException) || error.name !== "SecurityError") throw error;
}
