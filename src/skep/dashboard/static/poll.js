// Hooks that request data repeatedly. The page shows the last data until newer data arrives.
import { get } from "./api.js";
import { useCallback, useEffect, useState } from "./lib.js";

export function usePoll(path, seconds = 5, options = undefined) {
  const [state, setState] = useState({ path: null, data: null, error: null });
  const [reloads, setReloads] = useState(0);
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    let timer = null;
    const poll = async (fresh) => {
      if (!document.hidden || fresh || reloads === 0) await load(fresh);
      if (!abort.signal.aborted) timer = setTimeout(poll, seconds * 1000, false);
    };
    const load = async (fresh) => {
      try {
        const data = await get(path, { ...options, fresh, signal: abort.signal });
        setState({ path, data, error: null });
      } catch (error) {
        if (!abort.signal.aborted) setState((old) => ({ ...old, error }));
      }
    };
    poll(reloads > 0); // after an action of the user a cached response is too old
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, reloads, seconds]);
  const reload = useCallback(() => setReloads((n) => n + 1), []);
  return { data: state.data, error: state.error, reload, current: state.path === path };
}

// Returns a function that tells whether the user may perform an action on a queue, or on every queue. Pages hide the
// buttons of forbidden actions.
export function useRights(queue = null) {
  const path = queue === null ? "api/v1/dashboard/identity" : `api/v1/dashboard/identity?queue=${encodeURIComponent(queue)}`;
  const { data } = usePoll(path, 60);
  return useCallback((action) => data === null || data.may.includes(action), [data]);
}
