// A classic script, so that it runs before the first paint: the other theme must not flash up.
try {
  const kept = localStorage.getItem("midstream.theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch (error) {
  // Without storage the system's theme is right.
  if (!(error instanceof DOMException) || error.name !== "SecurityError") throw error;
}
