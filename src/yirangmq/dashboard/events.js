/* Server-Sent Events over fetch: unlike EventSource it can send a token. */

import { send } from "./api.js";

const RETRY_MS = 2000;

/** Follow a stream until `close`; `onEvent(data)` for each event, `lost()` when the stream ends by itself. */
export function follow(where, onEvent, lost) {
  const ending = new AbortController();
  const stream = { isOpen: false, close: () => ending.abort() };
  run(where, ending.signal, stream, onEvent, lost);
  return stream;
}

async function run(where, signal, stream, onEvent, lost) {
  let last = "";
  while (!signal.aborted) {
    try {
      const headers = { accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) };
      const answer = await send("GET", where, { headers, signal, patience: 0 });
      stream.isOpen = true;
      for await (const event of events(answer.body)) {
        last = event.id ?? last;
        if (event.data !== "") onEvent(event.data);
      }
    } catch {
      /* The server is unreachable, or refuses: the request for the status reports it. */
    }
    if (signal.aborted) return;
    if (stream.isOpen) lost();
    stream.isOpen = false;
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

/** The events in a body: `{id, data}`. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = { id: undefined, data: [] };
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r\n|\n|\r/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (event.data.length) yield { id: event.id, data: event.data.join("\n") };
        event = { id: undefined, data: [] };
      } else if (line.startsWith("data:")) event.data.push(line.slice(5).trimStart());
      else if (line.startsWith("id:")) event.id = line.slice(3).trim();
    }
  }
}
