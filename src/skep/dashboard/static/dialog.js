// Asking before something happens, showing how far it is, and saying that it did.
import * as format from "./format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";

let open = () => {};
let show = () => {};

// Resolves to true if the button was pressed. `body` says exactly what will happen; a function is called with a setter that blocks the button.
export function ask({ title, body, action, danger = false, wide = false }) {
  return new Promise((resolve) => open({ title, body, action, danger, wide, resolve }));
}

// Does something step by step: `step(n)` is the n-th, and resolves to how many things it did. Resolves to how many it were when all is done, somebody
// stopped it, or a step went wrong.
export function follow({ title, total, size, done, step }) {
  return new Promise((resolve) => open({ title, total, size, done, step, resolve }));
}

export function say(text, tone = "good") {
  show({ text, tone });
}

// Does something and says how it went; without `done` only if it went wrong.
export async function attempt(what, done) {
  try {
    const result = await what();
    if (done) say(typeof done === "function" ? done(result) : done);
    return result;
  } catch (error) {
    say(error.status === 403 ? "You do not have the right to do this." : error.message, "bad");
    return null;
  }
}

export function Dialogs() {
  const [question, setQuestion] = useState(null);
  const [notice, setNotice] = useState(null);
  useEffect(() => {
    open = setQuestion;
    show = setNotice;
  }, []);
  useEffect(() => {
    if (notice === null) return undefined;
    const timer = setTimeout(() => setNotice(null), 6000);
    return () => clearTimeout(timer);
  }, [notice]);
  const answer = (value) => {
    question.resolve(value);
    setQuestion(null);
  };
  return html`${question && html`<${question.step ? Job : Question} key=${question.resolve} ...${question} answer=${answer} />`}
    <div class="notices" role="status">${notice && html`<p class=${`notice ${notice.tone}`}>${notice.text}</p>`}</div>`;
}

// The focus stays inside, and goes back to where it was; if that is gone, to the page.
function Box({ title, wide, onLeave, children }) {
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
    addEventListener("hashchange", onLeave); // whoever goes elsewhere has not said yes
    return () => removeEventListener("hashchange", onLeave);
  }, [onLeave]);
  const cancel = (event) => {
    event.preventDefault();
    onLeave();
  };
  return html`<dialog ref=${box} class=${wide ? "broad" : ""} aria-labelledby="asked" onCancel=${cancel}><h2 id="asked">${title}</h2>${children}</dialog>`;
}

function Question({ title, body, action, danger, wide, answer }) {
  const [ready, setReady] = useState(typeof body !== "function");
  const submit = (event) => {
    event.preventDefault();
    answer(true);
  };
  return html`<${Box} title=${title} wide=${wide} onLeave=${() => answer(false)}><form onSubmit=${submit}>
    <div class="body">${typeof body === "function" ? body(setReady) : body}</div>
    <footer>
      <button type="button" onClick=${() => answer(false)}>Go back</button>
      <button type="submit" class=${danger ? "danger" : "primary"} disabled=${!ready}>${action}</button>
    </footer>
  </form></${Box}>`;
}

function Job({ title, total, size, done, step, answer }) {
  const [at, setAt] = useState(0);
  const stopped = useRef(false);
  useEffect(() => {
    const run = async () => {
      let made = 0;
      for (let n = 0; n * size < total && !stopped.current; n += 1) {
        const more = await attempt(() => step(n));
        if (more === null) break;
        made += more;
        setAt(Math.min((n + 1) * size, total));
      }
      answer(made);
    };
    run();
  }, []);
  const stop = () => {
    stopped.current = true;
  };
  return html`<${Box} title=${title} onLeave=${stop}>
    <progress max=${total} value=${at} aria-label=${title}></progress>
    <p aria-live="polite">${format.exact(at)} of ${format.plural(total, done)}.</p>
    <footer><button type="button" onClick=${stop}>Stop after this step</button></footer>
  </${Box}>`;
}
