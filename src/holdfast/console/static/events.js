// Server-sent events by fetch: unlike EventSource it can send the token as a header, so that it never stands in a URL.

const QUIET_MS = 30000; // The host says something every ten seconds; one that is silent for longer is asked anew.

export class Refused extends Error {
  constructor(status, why) { super(why); this.status = status; }
}

export async function ask(path, token, options = {}) {
  const headers = { Authorization: `Bearer ${token}`, ...options.headers };
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  if (!answer.ok) {
    let why = `${answer.status}`;
    try { why = (await answer.json()).error || why; } catch { /* Not one of ours. */ }
    throw new Refused(answer.status, why);
  }
  return answer;
}

export const order = (path, token, body) =>
  ask(path, token, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });

/** Calls `on[event](data)` for each event until `signal` is aborted; comes back after every break, with growing pauses. */
export async function follow(path, token, on, signal) {
  let pause = 500;
  while (!signal.aborted) {
    try {
      await once(path, token, on, signal, () => { pause = 500; });
      on.broken?.(null);
    } catch (error) {
      if (signal.aborted) return;
      on.broken?.(error);
      if (error instanceof Refused && [401, 403, 404].includes(error.status)) return;
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, 10000);
  }
}

async function once(path, token, on, signal, came) {
  const stop = new AbortController();
  const end = () => stop.abort();
  signal.addEventListener("abort", end);
  let quiet = setTimeout(end, QUIET_MS);
  try {
    const answer = await ask(path, token, { signal: stop.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(quiet);
      quiet = setTimeout(end, QUIET_MS);
      text += value;
      let at;
      while ((at = text.indexOf("\n\n")) >= 0) {
        const [name, data] = parsed(text.slice(0, at));
        text = text.slice(at + 2);
        if (name && on[name]) { came(); on[name](JSON.parse(data)); }
      }
    }
  } finally {
    clearTimeout(quiet);
    signal.removeEventListener("abort", end);
    stop.abort();
  }
}

function parsed(frame) {
  let name = "", data = "";
  for (const line of frame.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  return [name, data];
}

/** RFC 7386: what the patch does not name stays as it was, null takes away. */
export function merge(target, patch) {
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete target[name];
    else if (typeof value === "object" && !Array.isArray(value)) {
      const known = target[name];
      target[name] = merge(known && typeof known === "object" && !Array.isArray(known) ? known : {}, value);
    } else target[name] = value;
  }
  return target;
}
