// The moving parts of the console's pages: values and regions from the server's stream of events,
// graphs, the live tail, the colours, and the keyboard. Everything else is in the page as served.

const at = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Colours

const button = at("#theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";

function nameTheme() {
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Change to ${isDark() ? "light" : "dark"} colours`);
}

button.hidden = false;
button.addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  document.cookie = `theme=${theme}; path=/; max-age=31536000; samesite=strict`;
  nameTheme();
  for (const name of charts.keys()) drawChart(name, points.get(name), true);
});
prefersDark.addEventListener("change", nameTheme);
nameTheme();

// Keyboard: / goes to the search; the arrows go from row to row.

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const search = at("#search");
  const isTyping = event.target.closest("input, textarea, select");
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "Escape" && event.target === search) {
    search.blur();
  } else if (["ArrowDown", "ArrowUp"].includes(event.key) && event.target.closest("[data-arrows] tbody a")) {
    const links = all("tbody tr", event.target.closest("table")).map((row) => at("a", row)).filter(Boolean);
    const place = links.indexOf(at("a", event.target.closest("tr")));
    const next = links[place + (event.key === "ArrowDown" ? 1 : -1)];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  }
});

// Graphs

const charts = new Map();
const points = new Map();

function drawChart(name, columns, isAnew = false) {
  const box = at(`#chart-${CSS.escape(name)}`);
  if (!box || !window.uPlot || !columns) return;
  points.set(name, columns);
  if (columns[0].length < 2) {
    if (!charts.has(name)) at("p", box).textContent = "The graph begins when this page is open.";
    return;
  }
  const found = charts.get(name);
  if (found && !isAnew) {
    found.setData(columns);
    return;
  }
  found?.destroy();
  const style = getComputedStyle(document.documentElement);
  const colour = (key) => style.getPropertyValue(key).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `12px ${style.getPropertyValue("--font")}` };
  const seconds = (value) => (value === 0 ? "now" : value % 60 ? `${-value} s ago` : `${-value / 60} min ago`);
  box.replaceChildren();
  charts.set(name, new window.uPlot({
    width: box.clientWidth, height: 150, legend: { show: false }, cursor: { y: false },
    scales: { x: { time: false, range: (_, low) => [Math.min(low, -60), 0] }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
    axes: [
      { ...axis, size: 30, values: (_, ticks) => ticks.map(seconds), space: 120 },
      { ...axis, size: 58, space: 28, values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en")) },
    ],
    series: [{}, { stroke: colour("--accent"), width: 1.5, fill: colour("--accent-soft"), points: { show: false } }],
  }, columns, box));
}

new ResizeObserver((entries) => {
  for (const { target } of entries) {
    charts.get(target.dataset.chart)?.setSize({ width: target.clientWidth, height: 150 });
  }
}).observe(at("[data-chart]") ?? document.createElement("div"));

// The stream of events

const stream = at("#stream");

function replaceRegion(name, html) {
  const region = document.getElementById(name) ?? at(`[data-region="${CSS.escape(name)}"]`);
  if (!region) return;
  const focused = region.contains(document.activeElement) ? all("a", region).indexOf(document.activeElement) : -1;
  region.innerHTML = html;
  if (focused >= 0) (all("a", region)[focused] ?? at("a", region))?.focus();
}

let lastEvent = 0;
// Milliseconds: something comes every second.
const SILENCE = 8000;

async function loadAnew() {
  const answer = await fetch(location.href);
  const main = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  if (!main) return;
  for (const chart of charts.values()) chart.destroy();
  charts.clear();
  at("main").innerHTML = main.innerHTML;
}

function take(change) {
  lastEvent = Date.now();
  stream.textContent = "Live.";
  stream.className = "";
  if (change.reload) {
    loadAnew();
    return;
  }
  for (const [name, html] of Object.entries(change.regions)) replaceRegion(name, html);
  for (const [key, text] of Object.entries(change.values)) {
    for (const place of all(`[data-live="${CSS.escape(key)}"]`)) {
      if (place.textContent !== text) place.textContent = text;
    }
  }
  for (const [name, columns] of Object.entries(change.charts)) drawChart(name, columns);
}

function lose() {
  if (!stream || !lastEvent || Date.now() - lastEvent < SILENCE) return;
  stream.textContent = `The console has not answered for ${Math.round((Date.now() - lastEvent) / 1000)} s: what is shown is at least that old.`;
  stream.className = "lost";
}

const page = document.body.dataset.events;
let source;

function open() {
  if (!page || source || document.hidden) return;
  source = new EventSource(`/events?page=${encodeURIComponent(page)}`);
  source.onmessage = (event) => take(JSON.parse(event.data));
}

// A page that nobody sees asks nothing of the cluster.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source?.close();
    source = undefined;
  } else {
    open();
  }
});
addEventListener("pagehide", () => source?.close());
setInterval(lose, 1000);
open();

// The live tail

const ROWS = 200;
const body = at("#tail");
if (body) {
  const said = at("#tail-said");
  const pause = at("#pause");
  const withData = new URLSearchParams(location.search).get("data") === "1";
  let shown = 0, skipped = 0, isPaused = false, wasCut = false;
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
  });
  const cell = (text, kind) => {
    const found = document.createElement("td");
    found.textContent = text;
    if (kind) found.className = kind;
    return found;
  };
  said.textContent = "Waiting for the first transaction.";
  const tail = new EventSource(`/tail/events${location.search}`);
  addEventListener("pagehide", () => tail.close());
  // What comes until the browser has connected anew is neither shown nor counted.
  const cut = () => {
    wasCut = true;
    said.textContent = "The console does not answer: what comes meanwhile is neither shown nor counted.";
    said.className = "lost";
  };
  let heard = Date.now(), lastTrouble = "";
  // A console that has too many tails says so, and ends the stream.
  tail.onerror = () => lastTrouble || cut();
  setInterval(() => Date.now() - heard > SILENCE && cut(), 1000);
  tail.onmessage = (event) => {
    const { rows, skipped: more, said: trouble } = JSON.parse(event.data);
    heard = Date.now();
    lastTrouble = trouble;
    skipped += more;
    if (isPaused) {
      skipped += rows.length;
    } else {
      shown += rows.length;
      for (const row of rows) {
        const line = document.createElement("tr");
        const link = document.createElement("a");
        link.href = `/transaction?partition=${row.partition}&id=${row.id}`;
        link.textContent = Number(row.id).toLocaleString("en");
        const id = cell("", "n");
        id.append(link);
        line.append(cell(row.partition, "n"), id, cell(row.header, "n wide"), cell(row.request, "wide"));
        if (withData) line.append(cell(row.size.toLocaleString("en"), "n"), cell(row.data, "text"));
        body.prepend(line);
      }
      while (body.rows.length > ROWS) body.lastElementChild.remove();
    }
    const count = (value) => value.toLocaleString("en");
    const since = wasCut ? "since this page was opened, without those of the time in which the console did not answer." : "since this page was opened.";
    said.textContent = trouble || (shown || skipped ? `${count(shown)} shown, ${count(skipped)} skipped ${since}` : "Waiting for the first transaction.");
    said.className = trouble ? "lost" : "quiet";
  };
}
