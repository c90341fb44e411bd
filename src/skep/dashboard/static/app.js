// The frame of the page: the route in the hash of the URL, the navigation and the sign-in form.
import { hasToken, signIn, signOut, whenUnauthenticated } from "./api.js";
import { DeadLetters } from "./dead_letters.js";
import { Dialogs } from "./dialog.js";
import { Group } from "./group.js";
import { Groups } from "./groups.js";
import { html, render, useEffect, useState } from "./lib.js";
import { Messages } from "./messages.js";
import { Overview } from "./overview.js";
import { Pipelines } from "./pipelines.js";
import { Queue } from "./queue.js";
import { Queues } from "./queues.js";
import { System } from "./system.js";
import { toggleTheme, useTheme } from "./theme.js";

const PAGES = [
  ["overview", "Overview"],
  ["queues", "Queues"],
  ["groups", "Groups"],
  ["messages", "Messages"],
  ["dead-letters", "Dead letters"],
  ["pipelines", "Pipelines"],
  ["system", "System"],
];

// #/queues/a%2Fb?x=y
function currentRoute() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...names] = path.split("/").map(decoded);
  return { page: page || "overview", names, query: Object.fromEntries(new URLSearchParams(query)), key: location.hash };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// The key makes preact create the page again when it shows another queue, group or filter.
function Content({ page, names, query, key }) {
  if (page === "queues" && names.length) return html`<${Queue} key=${key} name=${names[0]} />`;
  if (page === "queues") return html`<${Queues} />`;
  if (page === "groups" && names.length > 1) return html`<${Group} key=${key} group=${names[0]} queue=${names[1]} />`;
  if (page === "groups") return html`<${Groups} />`;
  if (page === "messages") return html`<${Messages} key=${key} query=${query} />`;
  if (page === "dead-letters") return html`<${DeadLetters} key=${key} query=${query} />`;
  if (page === "pipelines") return html`<${Pipelines} />`;
  if (page === "system") return html`<${System} />`;
  if (page === "overview") return html`<${Overview} />`;
  return html`<p class="empty">Page not found.</p>`;
}

function Frame({ route, onSignOut }) {
  const theme = useTheme();
  useEffect(() => {
    const label = PAGES.find(([page]) => page === route.page)?.[1] ?? "Page not found";
    document.title = `${[...route.names, label].join(" · ")} · Skep`;
  }, [route]);
  return html`<nav aria-label="Pages"><div class="menu">
      <a class="brand" href="#/overview"><img src="dashboard/skep.svg" alt="" width="26" height="26" />Skep</a>
      <div class="links">${PAGES.map(
        ([page, label]) => html`<a key=${page} href=${`#/${page}`} aria-current=${route.page === page ? "page" : undefined}>${label}</a>`,
      )}</div>
      <div class="foot">
        <a href="docs">API</a>
        <button type="button" class="quiet" onClick=${toggleTheme} title="Switch theme" aria-label=${`Switch to ${theme === "dark" ? "light" : "dark"} theme`}>${theme === "dark" ? "☀" : "☾"}</button>
        ${hasToken() && html`<button type="button" class="quiet" onClick=${onSignOut}>Sign out</button>`}
      </div>
    </div></nav>
    <main tabindex="-1">${Content(route)}</main>`;
}

function Login({ reason, onToken }) {
  const [token, setToken] = useState("");
  const submit = (event) => {
    event.preventDefault();
    onToken(token.trim());
  };
  return html`<main class="alone">
    <form class="card login" onSubmit=${submit}>
      <h1><img src="dashboard/skep.svg" alt="" width="30" height="30" /> Skep</h1>
      <p>This server requires authentication. Enter a token or an API key. It is stored in this tab only, until you close the tab.</p>
      ${reason && html`<p class="failure" role="alert">${reason}</p>`}
      <label>Token or API key<input type="password" autocomplete="off" required value=${token} onInput=${(event) => setToken(event.target.value)} /></label>
      <button type="submit" class="primary">Sign in</button>
    </form>
  </main>`;
}

function App() {
  const [route, setRoute] = useState(currentRoute);
  const [rejection, setRejection] = useState(null);
  useEffect(() => {
    const navigate = () => {
      setRoute(currentRoute());
      scrollTo(0, 0);
    };
    addEventListener("hashchange", navigate);
    whenUnauthenticated((text) => setRejection({ text: hasToken() ? text : "" }));
    return () => removeEventListener("hashchange", navigate);
  }, []);
  const onToken = (token) => {
    signIn(token);
    setRejection(null);
  };
  const onSignOut = () => {
    signOut();
    setRejection({ text: "" });
  };
  return html`${rejection ? html`<${Login} reason=${rejection.text} onToken=${onToken} />` : html`<${Frame} route=${route} onSignOut=${onSignOut} />`}<${Dialogs} />`;
}

render(html`<${App} />`, document.body);
