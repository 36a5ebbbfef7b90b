// Runs before the first paint, so that a chosen theme does not flash. Not a module: those run later.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("fairlane-theme");
  } catch {
    // a browser may forbid storage; then the system's theme is used
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
