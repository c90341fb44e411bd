// Confirmation dialogs, progress dialogs and notices.
import * as format from "./format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";

let open = () => {};
let show = () => {};

// Opens a confirmation dialog. Resolves to true if the action button was pressed. `body` says exactly what will happen;
// if it is a function, it is called with a setter that enables and disables the button.
export function confirmAction({ title, body, action, danger = false, wide = false }) {
  return new Promise((resolve) => open({ title, body, action, danger, wide, resolve }));
}

// Runs `step(0)`, `step(1)`, ... and shows the progress. Each step resolves to the number of things it did. Resolves to
// their sum when all steps are done, the user stops, or a step fails.
export function runSteps({ title, total, size, noun, step }) {
  return new Promise((resolve) => open({ title, total, size, noun, step, resolve }));
}

export function notify(text, tone = "good") {
  show({ text, tone });
}

// Runs an action and shows a notice with `success` or with the error. Without `success` it shows errors only.
export async function runAction(action, success) {
  try {
    const result = await action();
    if (success) notify(typeof success === "function" ? success(result) : success);
    return result;
  } catch (error) {
    notify(error.status === 403 ? "You do not have permission to do this." : error.message, "bad");
    return null;
  }
}

export function Dialogs() {
  const [dialog, setDialog] = useState(null);
  const [notice, setNotice] = useState(null);
  useEffect(() => {
    open = setDialog;
    show = setNotice;
  }, []);
  useEffect(() => {
    if (notice === null) return undefined;
    const timer = setTimeout(() => setNotice(null), 6000);
    return () => clearTimeout(timer);
  }, [notice]);
  const close = (value) => {
    dialog.resolve(value);
    setDialog(null);
  };
  return html`${dialog && html`<${dialog.step ? Progress : Confirmation} key=${dialog.resolve} ...${dialog} close=${close} />`}
    <div class="notices" role="status">${notice && html`<p class=${`notice ${notice.tone}`}>${notice.text}</p>`}</div>`;
}

// The focus stays inside the dialog. On close it returns to the element that had it, or to the page if that element is
// gone.
function Modal({ title, wide, onDismiss, children }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const node = box.current;
    const before = document.activeElement;
    node.showModal();
    return () => {
      node.close();
      (before?.isConnected && before !== document.body ? before : document.querySelector("main"))?.focus();
    };
  }, []);
  useEffect(() => {
    addEventListener("hashchange", onDismiss); // leaving the page is not a confirmation
    return () => removeEventListener("hashchange", onDismiss);
  }, [onDismiss]);
  const cancel = (event) => {
    event.preventDefault();
    onDismiss();
  };
  return html`<dialog ref=${box} class=${wide ? "broad" : ""} aria-labelledby="dialog-title" onCancel=${cancel}><h2 id="dialog-title">${title}</h2>${children}</dialog>`;
}

function Confirmation({ title, body, action, danger, wide, close }) {
  const [ready, setReady] = useState(typeof body !== "function");
  const submit = (event) => {
    event.preventDefault();
    close(true);
  };
  return html`<${Modal} title=${title} wide=${wide} onDismiss=${() => close(false)}><form onSubmit=${submit}>
    <div class="body">${typeof body === "function" ? body(setReady) : body}</div>
    <footer>
      <button type="button" onClick=${() => close(false)}>Go back</button>
      <button type="submit" class=${danger ? "danger" : "primary"} disabled=${!ready}>${action}</button>
    </footer>
  </form></${Modal}>`;
}

function Progress({ title, total, size, noun, step, close }) {
  const [processed, setProcessed] = useState(0);
  const stopped = useRef(false);
  useEffect(() => {
    const run = async () => {
      let sum = 0;
      for (let n = 0; n * size < total && !stopped.current; n += 1) {
        const done = await runAction(() => step(n));
        if (done === null) break;
        sum += done;
        setProcessed(Math.min((n + 1) * size, total));
      }
      close(sum);
    };
    run();
  }, []);
  const stop = () => {
    stopped.current = true;
  };
  return html`<${Modal} title=${title} onDismiss=${stop}>
    <progress max=${total} value=${processed} aria-label=${title}></progress>
    <p aria-live="polite">${format.exact(processed)} of ${format.plural(total, noun)}.</p>
    <footer><button type="button" onClick=${stop}>Stop after this step</button></footer>
  </${Modal}>`;
}
