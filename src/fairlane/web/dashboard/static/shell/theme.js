// The theme: as the system has it, or as was chosen.

/** Changes to the other theme, and keeps the choice. */
export function nextTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("fairlane-theme", root.dataset.theme);
  } catch {
    // a browser may forbid storage; then the choice lasts as long as the page
  }
}
