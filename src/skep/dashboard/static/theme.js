// Light or dark: as the system says, until somebody says otherwise.
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
    const note = () => setTheme(current());
    changed.addEventListener("change", note);
    return () => changed.removeEventListener("change", note);
  }, []);
  return theme;
}

dark.addEventListener("change", apply);
apply();
