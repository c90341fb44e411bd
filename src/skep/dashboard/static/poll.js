// Data that stays fresh: asked for again every few seconds, and what is shown stays until there is newer.
import { get } from "./api.js";
import { useCallback, useEffect, useState } from "./lib.js";

export function usePoll(path, seconds = 5, options = undefined) {
  const [state, setState] = useState({ path: null, data: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    let timer = null;
    const look = async (fresh) => {
      if (!document.hidden || fresh || turn === 0) await ask(fresh);
      if (!abort.signal.aborted) timer = setTimeout(look, seconds * 1000, false);
    };
    const ask = async (fresh) => {
      try {
        const data = await get(path, { ...options, fresh, signal: abort.signal });
        setState({ path, data, error: null });
      } catch (error) {
        if (!abort.signal.aborted) setState((old) => ({ ...old, error }));
      }
    };
    look(turn > 0); // somebody has just changed something
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, turn, seconds]);
  const reload = useCallback(() => setTurn((n) => n + 1), []);
  return { data: state.data, error: state.error, reload, current: state.path === path };
}

// What the caller may do, on every queue or on one. Buttons for what is not allowed are not shown.
export function useRights(queue = null) {
  const path = queue === null ? "api/v1/dashboard/identity" : `api/v1/dashboard/identity?queue=${encodeURIComponent(queue)}`;
  const { data } = usePoll(path, 60);
  return useCallback((action) => data === null || data.may.includes(action), [data]);
}
