// Asking before something happens, and saying that it did.
import { html, useEffect, useRef, useState } from "./lib.js";

let open = () => {};
let show = () => {};

// Resolves to true if the button was pressed. `body` says exactly what will happen; a function is called with a setter that blocks the button.
export function ask({ title, body, action, danger = false }) {
  return new Promise((resolve) => open({ title, body, action, danger, resolve }));
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
  useEffect(() => {
    if (question === null) return undefined;
    const leave = () => answer(false); // whoever goes elsewhere has not said yes
    addEventListener("hashchange", leave);
    return () => removeEventListener("hashchange", leave);
  }, [question]);
  return html`${question && html`<${Question} ...${question} answer=${answer} />`}
    <div class="notices" role="status">${notice && html`<p class=${`notice ${notice.tone}`}>${notice.text}</p>`}</div>`;
}

function Question({ title, body, action, danger, answer }) {
  const box = useRef(null);
  const [ready, setReady] = useState(typeof body !== "function");
  useEffect(() => box.current.showModal(), []);
  const submit = (event) => {
    event.preventDefault();
    answer(true);
  };
  const cancel = (event) => {
    event.preventDefault();
    answer(false);
  };
  return html`<dialog ref=${box} onCancel=${cancel}>
    <form onSubmit=${submit}>
      <h2>${title}</h2>
      <div class="body">${typeof body === "function" ? body(setReady) : body}</div>
      <footer>
        <button type="button" onClick=${cancel}>Cancel</button>
        <button type="submit" class=${danger ? "danger" : "primary"} disabled=${!ready}>${action}</button>
      </footer>
    </form>
  </dialog>`;
}
