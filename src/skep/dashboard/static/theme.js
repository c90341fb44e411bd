// The light or dark theme: the preference of the system, unless the user has switched.
import { useEffect, useState } from "./lib.js";

const KEY = "skep.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const changed = new EventTarget();

function current() {
  return localStorage.getItem(KEY) ?? (dark.matches ? "dark" : "light");
}

function apply() {
  document.documentElement.dataset.theme = current();
  changed.dispatchEvent(new Event("change"));
}

export function toggleTheme() {
  localStorage.setItem(KEY, current() === "dark" ? "light" : "dark");
  apply();
}

export function useTheme() {
  const [theme, setTheme] = useState(current);
  useEffect(() => {
    const update = () => setTheme(current());
    changed.addEventListener("change", update);
    return () => changed.removeEventListener("change", update);
  }, []);
  return theme;
}

dark.addEventListener("change", apply);
apply();
