// Asks every task that fits what was typed, and shows what it says.
"use strict";

const SINGLE = [["This is a very funny film."], ["The dialogue is slightly bland, although the script feels mildly weak."]];
const PAIRS = {
  qqp: [["How can you find costly coats?", "How do people locate costly coats?"], ["How do people clean dirty cars?", "When do soldiers hire shoppers?"]],
  sts: [["Cops destroyed cheap cars near streets", "Officers destroyed inexpensive automobiles near streets"], ["Students bought dirty couches", "Doctors met two tourists near chapels"]],
};
let tasks = [];
let asking = null; // what ends the question that is on its way

function say(text, problem = false) {
  at("status").textContent = text;
  at("status").className = problem ? "problem" : "soft";
}

// The JSON at a path; an Error in words for everything else that may come of it.
async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server can't be reached. Is it still running?");
  }
  const body = await response.json().catch(() => null);
  if (response.ok && body) return body;
  if (response.status === 503) throw new Error("The server is busy. Try again in a moment.");
  throw new Error(body?.error ? `Not answered: ${body.error}.` : `The server failed (status ${response.status}).`);
}

function predict(task, rows, signal) {
  const headers = { "Content-Type": "application/json" };
  return ask(`predict/${encodeURIComponent(task)}`, { method: "POST", headers, signal, body: JSON.stringify({ rows }) });
}

// The tasks that can be asked about what was typed, each with its rows.
function questions(first, second) {
  const singles = second ? [first, second] : [first];
  return tasks
    .map((task) => (task.kind === "pair" ? { task, rows: second ? [[first, second]] : [] } : { task, rows: singles }))
    .filter((question) => question.rows.length);
}

const percent = (share) => (share > 0.999 && share < 1 ? ">99.9%" : `${(100 * share).toFixed(1)}%`);

function kindOf(task) {
  if (task.target === "score") return `a score from ${task.low} to ${task.high}${task.kind === "pair" ? ", of both sentences" : ""}`;
  const several = task.target === "multilabel";
  return (several ? `any of ${task.labels.length} classes` : task.labels.length === 2 ? task.labels.join(" or ") : `one of ${task.labels.length} classes`) + (task.kind === "pair" ? ", of both sentences" : "");
}

function track(share, best) {
  const filled = make("span");
  filled.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  const bar = make("div", { className: best ? "track best" : "track" }, filled);
  bar.setAttribute("aria-hidden", "true"); // the number stands beside it
  return bar;
}

function classBars(task, answer) {
  const bars = make("dl", { className: "bars" });
  answer.probabilities.forEach((share, label) => {
    const best = [answer.label].flat().includes(label);
    bars.append(
      make("dt", { textContent: task.labels[label], className: best ? "best" : "" }),
      track(share, best),
      make("dd", { textContent: percent(share), className: best ? "best" : "" }),
    );
  });
  return [make("p", { className: "verdict", textContent: [answer.name].flat().join(", ") || "none" }), bars];
}

function scoreBar(task, answer) {
  const ends = make("p", { className: "ends" }, make("span", { textContent: task.low }), make("span", { textContent: task.high }));
  const share = (answer.label - task.low) / (task.high - task.low);
  return [make("p", { className: "verdict", textContent: answer.label.toFixed(2) }), track(share, true), ends];
}

function card(task, answer, text) {
  const box = make("section", { className: "answer" });
  box.append(make("h2", { textContent: task.name }), make("p", { className: "soft", textContent: kindOf(task) }));
  if (text) box.append(make("p", { className: "text", textContent: text, dir: "auto" }));
  box.append(...(answer.probabilities ? classBars(task, answer) : scoreBar(task, answer)));
  return box;
}

// A card for each answer; with the text that it is about where a task answers for both sentences, each alone.
function cards({ task, rows }, answers) {
  return answers.map((answer, place) => card(task, answer, rows.length > 1 ? rows[place] : ""));
}

async function submit() {
  const first = at("first").value.trim();
  const second = at("pair").hidden ? "" : at("second").value.trim();
  const asked = first ? questions(first, second) : [];
  asking?.abort();
  asking = null;
  if (!first) return refuse("first", "Type a sentence.");
  if (!asked.length) return refuse("second", "All tasks of this model compare two sentences: type a second one.");
  const mine = (asking = new AbortController());
  say("Predicting…");
  at("results").setAttribute("aria-busy", "true");
  try {
    const found = await Promise.all(asked.map(({ task, rows }) => predict(task.name, rows, mine.signal)));
    at("results").replaceChildren(...asked.flatMap((question, place) => cards(question, found[place].predictions)));
    say(second || !tasks.some((task) => task.kind === "pair") ? "" : "Type a second sentence to compare the two.");
  } catch (error) {
    if (mine !== asking) return; // a newer question has taken its place
    at("results").replaceChildren();
    say(error.message, true);
  } finally {
    if (mine === asking) at("results").removeAttribute("aria-busy");
  }
}

function refuse(field, message) {
  at("results").replaceChildren();
  say(message, true);
  at(field).focus();
}

// A line of buttons for each task, which fill in an example and ask about it.
function examplesOf(task) {
  const examples = task.kind === "pair" ? PAIRS[task.name] || PAIRS.sts : SINGLE;
  const buttons = examples.map(([first, second = ""]) => {
    const button = make("button", { type: "button", className: "example", textContent: second ? `${first} / ${second}` : first });
    button.addEventListener("click", () => {
      at("first").value = first;
      at("second").value = second;
      submit();
    });
    return button;
  });
  return make("p", {}, make("span", { className: "soft", textContent: `${task.name}: ` }), ...buttons);
}

async function start() {
  let model;
  try {
    ({ model, tasks } = await ask("tasks"));
  } catch (error) {
    return say(error.message, true);
  }
  const pairs = tasks.filter((task) => task.kind === "pair");
  at("pair").hidden = !pairs.length;
  at("optional").hidden = pairs.length === tasks.length;
  const encoders = model.encoders.length ? `, encoder ${model.encoders.join(", ")}` : "";
  at("toy").hidden = !model.encoders.includes("tiny");
  at("examples").replaceChildren(...tasks.map(examplesOf));
  at("about").textContent = `Model: ${model.name}${encoders}. It answers ${tasks.length === 1 ? "one task" : `${tasks.length} tasks`}: ${tasks.map((task) => task.name).join(", ")}.`;
  at("go").disabled = false;
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
at("form").noValidate = true; // submit says in words what is missing
for (const field of document.querySelectorAll("textarea")) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    at("form").requestSubmit(at("go"));
  });
}
start();
