"use strict";
// Reloads the live part of a page while the page is visible, keeps times up to date, copies commands.
const EVERY = 3000, ALARMS_EVERY = 15000, CHARTS_EVERY = 20000;
const live = document.getElementById("live");
const pulse = document.getElementById("pulse");
const alarms = document.getElementById("alarms");
const away = document.getElementById("away");
const charts = document.getElementById("charts");
let etag = live && live.dataset.etag, ahead = 0, pressed = false, looking = false, stale = false;

function span(seconds) {
  const s = Math.max(Math.round(seconds), 0), pair = (a, b, m, n) => `${Math.floor(s / a)}${m} ${Math.floor((s % a) / b)}${n}`;
  return s < 60 ? `${s} s` : s < 3600 ? pair(60, 1, "m", "s") : s < 86400 ? pair(3600, 60, "h", "m") : pair(86400, 3600, "d", "h");
}

function tick() {
  if (stale) return; // the values are old
  const now = Date.now() + ahead;
  for (const each of document.querySelectorAll("time[datetime]")) {
    const past = (now - Date.parse(each.dateTime)) / 1000;
    const text = span("left" in each.dataset ? -past : past);
    if (each.textContent !== text) each.textContent = text;
  }
}

function clock() {
  const server = live && live.querySelector("[data-now]");
  if (server) ahead = Date.parse(server.dataset.now) - Date.now();
}

function isWritten() {
  return [...live.querySelectorAll("input[type=search]")].some((each) => each === document.activeElement || each.value !== each.defaultValue);
}

async function look() {
  if (document.hidden || pressed || looking || isWritten()) return; // do not replace an element in use
  looking = true;
  try {
    const answer = await fetch(live.dataset.live, { headers: { "If-None-Match": etag }, cache: "no-store" });
    if (answer.status === 200 && !pressed) {
      const links = () => [...live.querySelectorAll("a")];
      const focused = links().find((each) => each === document.activeElement);
      live.innerHTML = await answer.text();
      etag = answer.headers.get("ETag");
      clock();
      if (focused) links().find((each) => each.href === focused.href)?.focus({ preventScroll: true });
    }
    const why = { 401: "Sign in again", 503: "The store does not answer" }[answer.status] || `The page answers ${answer.status}`;
    showState(answer.ok || answer.status === 304 ? "" : why);
  } catch {
    showState("The page does not answer");
  } finally {
    looking = false;
  }
}

function showState(why) {
  stale = Boolean(why);
  live.classList.toggle("stale", stale);
  away.hidden = !stale;
  const seen = new Date(Date.parse(live.querySelector("[data-now]")?.dataset.now) || Date.now()).toISOString().slice(11, 19);
  const text = stale ? `${why}. These are the values of ${seen} UTC. The page tries again every ${EVERY / 1000} seconds.` : "";
  if (away.textContent !== text) away.textContent = text;
  showPulse(stale ? "not live" : "live", !stale);
}

async function retry() {
  try {
    if ((await fetch(location.href, { cache: "no-store" })).ok) location.reload();
  } catch {
    // the next try may work
  }
}

async function lookForAlarms() {
  if (document.hidden) return;
  try {
    const answer = await fetch(alarms.dataset.live, { cache: "no-store" });
    const focused = alarms.contains(document.activeElement), found = answer.ok ? await answer.text() : "alarms not known";
    if (alarms.innerHTML.trim() !== found.trim()) alarms.innerHTML = found;
    if (focused) alarms.querySelector("a")?.focus({ preventScroll: true });
  } catch {
    alarms.textContent = "alarms not known";
  }
}

// Charts: show the value of the period under the pointer or a finger, or chosen by keyboard on the slider below.
function showPeriod(figure, period) {
  const values = figure.dataset.values.split("|"), slider = figure.querySelector(".period");
  const value = values[Math.min(Math.max(period, 0), values.length - 1)];
  slider.value = period;
  slider.setAttribute("aria-valuetext", value);
  figure.querySelector("output").textContent = value;
}

function pointAt({ target, clientX }) {
  const chart = target instanceof Element && target.closest("svg.chart");
  if (!chart) return;
  const { left, width } = chart.getBoundingClientRect(), figure = chart.closest("figure");
  showPeriod(figure, Math.floor(((clientX - left) / width) * figure.dataset.values.split("|").length));
}

async function drawAgain() {
  if (document.hidden || pressed || charts.contains(document.activeElement)) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const found = answer.ok && new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("charts");
    if (!found || pressed) return;
    charts.innerHTML = found.innerHTML;
    slide();
  } catch {
    // the banner of the live part shows it
  }
}

function slide() {
  for (const each of charts.querySelectorAll(".period")) each.hidden = false;
}

function showPulse(text, fine) {
  if (pulse.textContent !== text) pulse.textContent = text;
  pulse.className = fine ? "fine" : "bad";
}

for (const each of ["pointerdown", "pointerup", "pointercancel"]) addEventListener(each, () => { pressed = each === "pointerdown"; });
document.addEventListener("click", async ({ target }) => {
  if (!(target instanceof Element) || !target.matches("[data-copy]")) return;
  const code = target.previousElementSibling;
  getSelection().selectAllChildren(code); // without https there is no clipboard, but there is Ctrl-C
  try { await navigator.clipboard.writeText(code.textContent); target.textContent = "Copied"; } catch { target.textContent = "Selected"; }
});
for (const each of ["pointermove", "pointerdown"]) document.addEventListener(each, pointAt);
document.addEventListener("input", ({ target }) => { if (target.matches(".period")) showPeriod(target.closest("figure"), Number(target.value)); });
document.addEventListener("input", ({ target }) => { if (target.name === "for") target.form.elements.ever.checked = !target.value; });
clock();
setInterval(tick, 1000);
if (live) { look(); setInterval(look, EVERY); document.addEventListener("visibilitychange", look); }
if (charts) { slide(); setInterval(drawAgain, CHARTS_EVERY); }
if (alarms) { lookForAlarms(); setInterval(lookForAlarms, ALARMS_EVERY); }
if (document.querySelector("[data-retry]")) setInterval(retry, EVERY);
